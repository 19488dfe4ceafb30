# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE= -DFOLDER= -DGENERATOR= -DTORCH= -P: if the first dispatch key does not work with LibTorch, configuration
# takes the second one, and a second configuration does not check again.
file(REMOVE_RECURSE "${FOLDER}")
file(WRITE "${FOLDER}/project/CMakeLists.txt" "
cmake_minimum_required(VERSION 3.25)
project(gather_key LANGUAGES C CXX)
set(ACCELERATE_GATHER_KEYS DroppedKey TESTING_ONLY_GenericMode)
include(\"${SOURCE}/cmake/AccelerateLibTorch.cmake\")
accelerate_import_libtorch(OFF)
include(\"${SOURCE}/cmake/AccelerateGatherKey.cmake\")
message(STATUS \"the choice is \${ACCELERATE_GATHER_KEY_CHOICE}\")
")

function(configure)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${FOLDER}/project" -B "${FOLDER}/build" -G "${GENERATOR}" "-DTorch_DIR=${TORCH}/share/cmake/Torch"
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(status OR NOT output MATCHES "the choice is TESTING_ONLY_GenericMode")
    message(FATAL_ERROR "TESTING_ONLY_GenericMode was not taken:\n${output}")
  endif()
  set(printed "${output}" PARENT_SCOPE)
endfunction()

configure()
foreach(line "checking the dispatch key DroppedKey" "the dispatch key DroppedKey does not work: the check does not compile:"
             "checking the dispatch key TESTING_ONLY_GenericMode" "operators gather parameters by the dispatch key TESTING_ONLY_GenericMode")
  string(FIND "${printed}" "${line}" at)
  if(at EQUAL -1)
    message(FATAL_ERROR "not printed: ${line}\n${printed}")
  endif()
endforeach()
configure()
if(printed MATCHES "checking")
  message(FATAL_ERROR "the second configuration checked again:\n${printed}")
endif()
file(REMOVE_RECURSE "${FOLDER}")
