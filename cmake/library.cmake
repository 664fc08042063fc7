# longspan_library(NAME SOURCES a.cc ... DEPS x ...): one static library of the tree, named longspan_NAME and longspan::NAME.
# Without SOURCES it is a header-only target.
function(longspan_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  if(ARG_SOURCES)
    add_library(longspan_${name} STATIC ${ARG_SOURCES})
    target_link_libraries(longspan_${name} PUBLIC longspan_options ${ARG_DEPS})
  else()
    add_library(longspan_${name} INTERFACE)
    target_link_libraries(longspan_${name} INTERFACE longspan_options ${ARG_DEPS})
  endif()
  add_library(longspan::${name} ALIAS longspan_${name})
endfunction()
