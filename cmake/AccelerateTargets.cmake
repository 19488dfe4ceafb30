# SPDX-License-Identifier: Apache-2.0
# Functions for the CMakeLists.txt files of components.

# accelerate_component(<target> [ALONE] SOURCES a.cpp ... HEADERS a.hpp ...): adds the files of this folder to the target.
# Only the listed headers are installed. With CMAKE_UNITY_BUILD the sources of a component are compiled as one file, which
# parses LibTorch's headers once. ALONE excludes these sources from the unity build.
function(accelerate_component target)
  cmake_parse_arguments(PARSE_ARGV 1 component "ALONE" "" "SOURCES;HEADERS")
  list(TRANSFORM component_SOURCES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  list(TRANSFORM component_HEADERS PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  target_sources(${target} PRIVATE ${component_SOURCES})
  file(RELATIVE_PATH component "${Accelerate_SOURCE_DIR}/accelerate" "${CMAKE_CURRENT_SOURCE_DIR}")
  set_source_files_properties(${component_SOURCES} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP "facade/${component}")
  if(component_ALONE)
    set_source_files_properties(${component_SOURCES} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  if(component_HEADERS)
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${Accelerate_SOURCE_DIR}" FILES ${component_HEADERS})
  endif()
endfunction()

# accelerate_normalize_option(CUDA): sets ACCELERATE_WITH_CUDA to AUTO, ON or OFF. Letters may be of either case.
macro(accelerate_normalize_option name)
  string(TOUPPER "${ACCELERATE_WITH_${name}}" choice)
  if(NOT choice MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "Accelerate: ACCELERATE_WITH_${name} is '${ACCELERATE_WITH_${name}}', must be AUTO, ON or OFF.")
  endif()
  set(ACCELERATE_WITH_${name} ${choice})
endmacro()

# accelerate_optional_dependency(<MPI> <libopenmpi-dev> <variable that is true if it was found>): sets ACCELERATE_HAS_MPI
# and ACCELERATE_STATUS_MPI from ACCELERATE_WITH_MPI, which is AUTO, ON or OFF.
macro(accelerate_optional_dependency name package found)
  set(ACCELERATE_WITH_${name} AUTO CACHE STRING "Build the ${name} part: AUTO, ON or OFF")
  set_property(CACHE ACCELERATE_WITH_${name} PROPERTY STRINGS AUTO ON OFF)
  accelerate_normalize_option(${name})
  set(ACCELERATE_HAS_${name} FALSE)
  if(ACCELERATE_WITH_${name} STREQUAL "OFF")
    set(ACCELERATE_STATUS_${name} "off")
  elseif(${found})
    set(ACCELERATE_HAS_${name} TRUE)
    set(ACCELERATE_STATUS_${name} "yes")
  elseif(ACCELERATE_WITH_${name} STREQUAL "ON")
    message(FATAL_ERROR "Accelerate: ACCELERATE_WITH_${name} is ON, but it was not found; install ${package}, "
                        "or build without it: -DACCELERATE_WITH_${name}=OFF.")
  else()
    set(ACCELERATE_STATUS_${name} "no (needs ${package})")
  endif()
endmacro()
