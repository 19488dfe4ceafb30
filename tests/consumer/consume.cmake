# SPDX-License-Identifier: Apache-2.0
# Configures, builds and runs the consumer project of one WAY. find_package gets an installed tree that was moved.
function(step)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(status)
    string(JOIN " " command ${ARGV})
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
  set(said "${output}" PARENT_SCOPE)
endfunction()

set(folder "${BUILD}-consumer-${WAY}")
set(options "")
if(WAY STREQUAL "find_package")
  set(moved "${BUILD}/consumer-moved")
  file(REMOVE_RECURSE "${BUILD}/consumer-installed" "${moved}" "${folder}")
  step("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${BUILD}/consumer-installed")
  file(RENAME "${BUILD}/consumer-installed" "${moved}")
  list(APPEND options "-DAccelerate_ROOT=${moved}")

  # What is installed may know neither our sources nor where it was installed at first.
  file(GLOB_RECURSE files "${moved}/*.cmake")
  foreach(file IN LISTS files)
    file(STRINGS "${file}" leaks REGEX "${SOURCE}/(accelerate|launch|cmake)|consumer-installed")
    if(leaks)
      message(FATAL_ERROR "${file} names a folder of the build: ${leaks}")
    endif()
  endforeach()
else()
  list(APPEND options "-DACCELERATE_FOLDER=${SOURCE}")
endif()

step("${CMAKE_COMMAND}" -S "${SOURCE}/tests/consumer/${WAY}" -B "${folder}" -G "${GENERATOR}" "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}"
     "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" "-DTorch_DIR=${TORCH}/share/cmake/Torch" ${options})
step("${CMAKE_COMMAND}" --build "${folder}" -j 2)
step("${folder}/consumer")
if(NOT said STREQUAL "${WAY}, 1 process, weight 0.5\n")
  message(FATAL_ERROR "the consumer of ${WAY} said: ${said}")
endif()
