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

# longspan_cuda_sources(TARGET [LINE sm80] a.cu ...): adds device code to a target. Without LINE it is compiled for sm_90a. LINE sm80
# is code for every card from Ampere on: machine code for 8.x and 9.0, PTX for what is newer. LINE sm89 is the same for sources that
# use instructions of 8.9 where there are any. The build fails on a spill, on local
# memory and on whatever else ptxas warns of; what it only mentions, scripts/strict-nvcc turns into failure.
function(longspan_cuda_sources target)
  cmake_parse_arguments(ARG "" "LINE" "" ${ARGN})
  set(launcher "${CMAKE_SOURCE_DIR}/scripts/strict-nvcc")
  if(LONGSPAN_CCACHE)
    list(APPEND launcher "${LONGSPAN_CCACHE}")
  endif()
  set(code -gencode=arch=compute_90a,code=sm_90a)
  if(ARG_LINE STREQUAL "sm80")
    set(code -gencode=arch=compute_80,code=[sm_80,sm_90,compute_80])
  elseif(ARG_LINE STREQUAL "sm89")
    set(code -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_89,code=[sm_89,sm_90,compute_89])
  endif()
  target_sources(${target} PRIVATE ${ARG_UNPARSED_ARGUMENTS})
  set_source_files_properties(${ARG_UNPARSED_ARGUMENTS} PROPERTIES COMPILE_OPTIONS "${code}")
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20;--expt-relaxed-constexpr>"
    "$<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-warn-spills,-warn-lmem-usage,-Werror>")
  set_target_properties(${target} PROPERTIES CUDA_STANDARD_REQUIRED OFF CUDA_COMPILER_LAUNCHER
                        "${launcher}")
endfunction()

# longspan_gpu_program(TARGET): a program that needs a GPU to do its work, and says so without one (test NoDevice). The target
# `gpu` builds all of them.
function(longspan_gpu_program target)
  add_dependencies(gpu ${target})
  set_property(GLOBAL APPEND PROPERTY LONGSPAN_GPU_PROGRAMS "$<TARGET_FILE:${target}>")
endfunction()
