# longspan_test(NAME LABEL unit SOURCES a_test.cc ... DEPS x ...): one GoogleTest binary; every case becomes a CTest test.
# LABEL is unit, gpu (skips without a device), integration or slow. TIMEOUT (seconds, default 120) bounds each case; sanitizers get five times that.
include(GoogleTest)
function(longspan_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(LONGSPAN_SANITIZE)
    math(EXPR ARG_TIMEOUT "5 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE longspan_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
                       PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
  if(ARG_LABEL STREQUAL "gpu")
    longspan_gpu_program(${name})
  endif()
endfunction()
