# longspan_test(NAME LABEL unit SOURCES a_test.cc ... DEPS x ...): one GoogleTest binary; every case becomes a CTest test.
# LABEL is unit, integration or slow. TIMEOUT (seconds, default 120) bounds each case.
include(GoogleTest)
function(longspan_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE longspan_options ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
                       PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
endfunction()

# longspan_pytest(NAME LABEL unit FILES x_test.py ... ENVIRONMENT A=b): pytest files as one CTest test, run by the
# environment that scripts/test makes from tests/requirements.txt; skipped where there is none.
set(LONGSPAN_PYTHON "${CMAKE_SOURCE_DIR}/build/venv/bin/python" CACHE FILEPATH "Python with the packages of tests/requirements.txt")
function(longspan_pytest name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "FILES;ENVIRONMENT" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND "${CMAKE_SOURCE_DIR}/tests/support/pytest" "${LONGSPAN_PYTHON}" ${ARG_FILES}
           WORKING_DIRECTORY "${CMAKE_CURRENT_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
                       ENVIRONMENT "${ARG_ENVIRONMENT}")
endfunction()
