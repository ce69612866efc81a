# Debian 12 has no CMake package of these.
find_library(LIGNUM_UTF8PROC utf8proc REQUIRED)
find_library(LIGNUM_PCRE2 pcre2-8 REQUIRED)
find_library(LIGNUM_SENTENCEPIECE sentencepiece REQUIRED)
find_path(LIGNUM_SENTENCEPIECE_HEADER sentencepiece_processor.h REQUIRED)
find_path(LIGNUM_XXHASH xxhash.h REQUIRED)
target_link_libraries(lignum_tokenizer PRIVATE ${LIGNUM_UTF8PROC} ${LIGNUM_PCRE2} ${LIGNUM_SENTENCEPIECE})
