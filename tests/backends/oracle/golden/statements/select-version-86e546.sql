SELECT max(locus_version.version_num) AS max_1
FROM locus_version
