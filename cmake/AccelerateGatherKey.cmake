# SPDX-License-Identifier: Apache-2.0
# Chooses the dispatch key by which operators gather parameters (accelerate/units/gather_on_use.cpp). LibTorch reserves the
# candidates and does not use them, but promises neither. A program is therefore compiled and run with the LibTorch that
# was found, once for each LibTorch and compiler.
#
# Sets ACCELERATE_GATHER_KEY_CHOICE to one of ACCELERATE_GATHER_KEYS.

if(NOT DEFINED ACCELERATE_GATHER_KEYS)   # a test has others
  # In the order of preference. LibTorch 2.15 itself uses Fake, which the check finds.
  set(ACCELERATE_GATHER_KEYS TESTING_ONLY_GenericWrapper TESTING_ONLY_GenericMode Fake)
endif()
set(ACCELERATE_GATHER_KEY AUTO CACHE STRING "Dispatch key by which operators gather parameters: AUTO, or a key that is not checked")
set_property(CACHE ACCELERATE_GATHER_KEY PROPERTY STRINGS AUTO ${ACCELERATE_GATHER_KEYS})

# accelerate_check_gather_key(<key> <works> <problem>): compiles and runs the program with the key.
function(accelerate_check_gather_key key works problem)
  set(folder "${CMAKE_CURRENT_FUNCTION_LIST_DIR}")
  try_run(status compiled SOURCES "${folder}/check_gather_key.cpp" NO_CACHE
          CMAKE_FLAGS "-DINCLUDE_DIRECTORIES:STRING=${folder}/.."
          COMPILE_DEFINITIONS "-DACCELERATE_GATHER_KEY=${key}"
          LINK_LIBRARIES accelerate_libtorch
          COMPILE_OUTPUT_VARIABLE compile_output RUN_OUTPUT_VARIABLE run_output
          CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
  set(${works} FALSE PARENT_SCOPE)
  if(NOT compiled)
    string(REGEX MATCHALL "[^\n]*error[^\n]*" errors "${compile_output}")   # the rest is commands
    list(SUBLIST errors 0 3 errors)
    string(JOIN "\n    " errors ${errors})
    set(${problem} "the check does not compile: ${errors}" PARENT_SCOPE)
  elseif(NOT status EQUAL 0)
    string(STRIP "${run_output}" run_output)
    set(${problem} "the check ended with ${status}: ${run_output}" PARENT_SCOPE)
  else()
    set(${works} TRUE PARENT_SCOPE)
  endif()
endfunction()

function(accelerate_choose_gather_key out)
  if(NOT ACCELERATE_GATHER_KEY STREQUAL "AUTO")
    if(NOT ACCELERATE_GATHER_KEY IN_LIST ACCELERATE_GATHER_KEYS)
      string(JOIN ", " keys ${ACCELERATE_GATHER_KEYS})
      message(FATAL_ERROR "Accelerate: ACCELERATE_GATHER_KEY is '${ACCELERATE_GATHER_KEY}', must be AUTO or one of ${keys}.")
    endif()
    set(${out} "${ACCELERATE_GATHER_KEY}" PARENT_SCOPE)
    return()
  endif()
  list(GET ACCELERATE_GATHER_KEYS 0 first)
  if(CMAKE_CROSSCOMPILING AND NOT CMAKE_CROSSCOMPILING_EMULATOR)
    message(STATUS "Accelerate: the dispatch key ${first} is not checked, because programs of the target do not run here")
    set(${out} ${first} PARENT_SCOPE)
    return()
  endif()
  string(JOIN " " build "LibTorch ${ACCELERATE_LIBTORCH_VERSION} in ${ACCELERATE_LIBTORCH_ROOT}" "${CMAKE_CXX_COMPILER}"
         "${CMAKE_CXX_COMPILER_VERSION}" ${ACCELERATE_GATHER_KEYS})
  file(SHA256 "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/check_gather_key.cpp" program)
  if(ACCELERATE_GATHER_KEY_OF_CHECK AND ACCELERATE_GATHER_KEY_CHECK STREQUAL "${build} ${program}")
    set(${out} ${ACCELERATE_GATHER_KEY_OF_CHECK} PARENT_SCOPE)
    return()
  endif()
  set(problems "")
  foreach(key IN LISTS ACCELERATE_GATHER_KEYS)
    message(STATUS "Accelerate: checking the dispatch key ${key}")
    accelerate_check_gather_key(${key} works problem)
    if(works)
      message(STATUS "Accelerate: operators gather parameters by the dispatch key ${key}")
      set(ACCELERATE_GATHER_KEY_OF_CHECK ${key} CACHE INTERNAL "The first key that works")
      set(ACCELERATE_GATHER_KEY_CHECK "${build} ${program}" CACHE INTERNAL "What the key was checked with")
      set(${out} ${key} PARENT_SCOPE)
      return()
    endif()
    message(STATUS "Accelerate: the dispatch key ${key} does not work: ${problem}")
    string(APPEND problems "\n  ${key}: ${problem}")
  endforeach()
  message(FATAL_ERROR "Accelerate: LibTorch ${ACCELERATE_LIBTORCH_VERSION} in ${ACCELERATE_LIBTORCH_ROOT} has no dispatch key by which "
                      "operators can gather parameters:${problems}\nUse a LibTorch 2.11 or 2.15, which we test. To build without this "
                      "check, give -DACCELERATE_GATHER_KEY=<key>; sharded training and offloading may then fail.")
endfunction()

accelerate_choose_gather_key(ACCELERATE_GATHER_KEY_CHOICE)
