SELECT 'revision' AS name, locus_version.version_num
FROM locus_version UNION ALL SELECT locus_settings.name, locus_settings.value
FROM locus_settings
