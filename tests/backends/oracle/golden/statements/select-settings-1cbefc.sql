SELECT locus_settings.name, locus_settings.value
FROM locus_settings
