# SPDX-License-Identifier: Apache-2.0
# The install rules and the package files for find_package(Accelerate). Included after all components have added their
# sources.
include(CMakePackageConfigHelpers)

# Dependencies that the user's project must find: a target, and the command that finds it.
set(ACCELERATE_FINDERS
    "MPI::MPI_C|MPI COMPONENTS C" "Threads::Threads|Threads" "ZLIB::ZLIB|ZLIB" "JPEG::JPEG|JPEG" "PNG::PNG|PNG" "yaml-cpp|yaml-cpp"
    "nlohmann_json::nlohmann_json|nlohmann_json")

set(exported accelerate_base accelerate)
get_target_property(linked accelerate LINK_LIBRARIES)
if(accelerate_launch_lib IN_LIST linked)
  list(APPEND exported accelerate_launch_lib)
endif()
foreach(target IN LISTS exported)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  list(APPEND linked ${libraries})
endforeach()
set(ACCELERATE_FIND_DEPENDENCIES "")
foreach(finder IN LISTS ACCELERATE_FINDERS)
  string(REPLACE "|" ";" finder "${finder}")
  list(GET finder 0 target)
  list(GET finder 1 arguments)
  if(target IN_LIST linked)
    string(APPEND ACCELERATE_FIND_DEPENDENCIES "find_dependency(${arguments})\n")
  endif()
endforeach()

set(ACCELERATE_LIBTORCH_BUILD_CUDA OFF)
if(ACCELERATE_LIBTORCH_HAS_CUDA)
  set(ACCELERATE_LIBTORCH_BUILD_CUDA ON)
endif()
set(config "${CMAKE_INSTALL_LIBDIR}/cmake/Accelerate")
foreach(target IN LISTS exported)
  install(TARGETS ${target} EXPORT AccelerateTargets FILE_SET HEADERS)
endforeach()
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
install(FILES tests/setup/lsan.supp DESTINATION "${CMAKE_INSTALL_DATADIR}/accelerate")   # suppressions of Open MPI's leaks, for programs with a sanitizer
install(PROGRAMS tools/export_compiled.py DESTINATION "${CMAKE_INSTALL_BINDIR}")
get_property(programs GLOBAL PROPERTY ACCELERATE_PROGRAMS)
if(programs)
  install(TARGETS ${programs} EXPORT AccelerateTargets)
endif()
install(EXPORT AccelerateTargets FILE AccelerateTargets.cmake NAMESPACE accelerate:: DESTINATION "${config}")
configure_package_config_file(cmake/AccelerateConfig.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/AccelerateConfig.cmake"
                              INSTALL_DESTINATION "${config}")
# Before 1.0, a new minor version may change the interface.
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/AccelerateConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/AccelerateConfig.cmake" "${CMAKE_CURRENT_BINARY_DIR}/AccelerateConfigVersion.cmake"
              cmake/AccelerateLibTorch.cmake DESTINATION "${config}")
