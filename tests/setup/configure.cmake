# SPDX-License-Identifier: Apache-2.0
# cmake -DSOURCE=.. -DFOLDER=.. -DGENERATOR=.. -P: configures the project with missing or wrong parts and checks its output.
set(failures 0)
file(REMOVE_RECURSE "${FOLDER}")

# A folder with the files of a CPU-only LibTorch of a given version. It is never compiled.
function(fake_libtorch version)
  string(REPLACE "." ";" parts "${version}")
  list(GET parts 0 major)
  list(GET parts 1 minor)
  list(GET parts 2 patch)
  set(root "${FOLDER}/libtorch-${version}")
  file(WRITE "${root}/include/torch/headeronly/version.h"
       "#define TORCH_VERSION_MAJOR ${major}\n#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH ${patch}\n")
  file(WRITE "${root}/include/torch/csrc/api/include/torch/torch.h" "")
  file(WRITE "${root}/include/fmt/format.h" "")
endfunction()
foreach(version 2.10.0 2.11.0 2.12.1 2.15.0 2.16.0)
  fake_libtorch(${version})
endforeach()
set(torch "-DTorch_DIR=${FOLDER}/libtorch-2.11.0/share/cmake/Torch")

# expect(<result> <pieces...> OPTIONS <options...>): configures and checks that the output contains every piece, ignoring
# line breaks.
function(expect promise)
  cmake_parse_arguments(PARSE_ARGV 1 case "FAILS" "" "PRINTS;OPTIONS")
  string(MD5 hash "${promise}")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${FOLDER}/${hash}" -G "${GENERATOR}" -DACCELERATE_BUILD_TESTS=OFF -DCMAKE_BUILD_TYPE=Release
            -DACCELERATE_GATHER_KEY=TESTING_ONLY_GenericWrapper ${case_OPTIONS}
    RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " printed "${output}")
  set(problem "")
  if(case_FAILS AND status EQUAL 0)
    set(problem "configured, should have failed")
  elseif(NOT case_FAILS AND NOT status EQUAL 0)
    set(problem "failed")
  endif()
  foreach(piece IN LISTS case_PRINTS)
    string(FIND "${printed}" "${piece}" at)
    if(at EQUAL -1)
      string(APPEND problem "\n  not printed: ${piece}")
    endif()
  endforeach()
  if(problem)
    message("FAILED ${promise}: ${problem}\n${output}")
    math(EXPR failures "${failures} + 1")
    set(failures ${failures} PARENT_SCOPE)
  else()
    message("ok ${promise}")
  endif()
endfunction()

expect("one line sums up what was found"
       PRINTS "Accelerate 0.2.0: LibTorch 2.11.0 in ${FOLDER}/libtorch-2.11.0; CUDA no (this LibTorch has none); NCCL no (needs a LibTorch with CUDA (the PyPI package torch));"
            "fmt LibTorch's, header-only"
       OPTIONS ${torch})
expect("a LibTorch is also found by CMAKE_PREFIX_PATH"
       PRINTS "LibTorch 2.11.0 in ${FOLDER}/libtorch-2.11.0;"
       OPTIONS -DCMAKE_PREFIX_PATH=${FOLDER}/libtorch-2.11.0)
expect("2.12 to 2.14 are accepted, with a note that they are untested"
       PRINTS "LibTorch 2.12.1 in ${FOLDER}/libtorch-2.12.1, untested: 2.11 and 2.15.0 are what we test;"
       OPTIONS -DTorch_DIR=${FOLDER}/libtorch-2.12.1/share/cmake/Torch)
expect("2.15 is the last that is accepted"
       PRINTS "LibTorch 2.15.0 in ${FOLDER}/libtorch-2.15.0;"
       OPTIONS -DTorch_DIR=${FOLDER}/libtorch-2.15.0/share/cmake/Torch)
foreach(version 2.10.0 2.16.0)
  expect("LibTorch ${version} is refused" FAILS
         PRINTS "Accelerate: LibTorch in ${FOLDER}/libtorch-${version} is ${version}; supported is 2.11 to 2.15. Give another with -DTorch_DIR=<libtorch>/share/cmake/Torch."
         OPTIONS -DTorch_DIR=${FOLDER}/libtorch-${version}/share/cmake/Torch)
endforeach()
expect("a Torch_DIR without LibTorch is refused" FAILS
       PRINTS "Accelerate: Torch_DIR is ${FOLDER}/nothing, but there is no LibTorch three folders above it. It must name <libtorch>/share/cmake/Torch."
       OPTIONS -DTorch_DIR=${FOLDER}/nothing)
set(ENV{XDG_CACHE_HOME} "${FOLDER}/cache")
expect("no LibTorch anywhere names the places" FAILS
       PRINTS "Accelerate: no LibTorch 2.11 to 2.15 found in Torch_DIR, CMAKE_PREFIX_PATH, python3 or ${FOLDER}/cache/accelerate. './run build' fetches it, or give -DTorch_DIR=<libtorch>/share/cmake/Torch."
       OPTIONS -DACCELERATE_PYTHON3=OFF)
file(COPY "${FOLDER}/libtorch-2.10.0/include" DESTINATION "${FOLDER}/cache/accelerate/venv-2.10.0/lib/python3.11/site-packages/torch")
expect("a LibTorch that is too old is named when there is no other" FAILS
       PRINTS "Found and not supported: 2.10.0 in ${FOLDER}/cache/accelerate/venv-2.10.0/lib/python3.11/site-packages/torch."
       OPTIONS -DACCELERATE_PYTHON3=OFF)
file(COPY "${FOLDER}/libtorch-2.11.0/include" DESTINATION "${FOLDER}/cache/accelerate/venv-2.11.0/lib/python3.11/site-packages/torch")
expect("the environment that ./run makes is found"
       PRINTS "LibTorch 2.11.0 in ${FOLDER}/cache/accelerate/venv-2.11.0/lib/python3.11/site-packages/torch;"
       OPTIONS -DACCELERATE_PYTHON3=OFF)
file(COPY "${FOLDER}/libtorch-2.12.1/include" DESTINATION "${FOLDER}/python/torch")
file(WRITE "${FOLDER}/python/torch/__init__.py" "raise ImportError('only looked for, never run')\n")
set(ENV{PYTHONPATH} "${FOLDER}/python")
expect("the torch of python3 comes before that environment" PRINTS "LibTorch 2.12.1 in ${FOLDER}/python/torch, untested")
expect("Torch_DIR comes before both" PRINTS "LibTorch 2.11.0 in ${FOLDER}/libtorch-2.11.0;" OPTIONS ${torch})
file(REMOVE_RECURSE "${FOLDER}/python/torch/include")
file(COPY "${FOLDER}/libtorch-2.10.0/include" DESTINATION "${FOLDER}/python/torch")
expect("a torch of python3 that is too old is passed over"
       PRINTS "LibTorch 2.11.0 in ${FOLDER}/cache/accelerate/venv-2.11.0/lib/python3.11/site-packages/torch;")
unset(ENV{PYTHONPATH})
unset(ENV{XDG_CACHE_HOME})

expect("CUDA that is switched off is listed" PRINTS "CUDA no (switched off); NCCL no" OPTIONS ${torch} -DACCELERATE_WITH_CUDA=OFF)
expect("CUDA=ON without it names the package" FAILS
       PRINTS "Accelerate: ACCELERATE_WITH_CUDA is ON, but this LibTorch has none (LibTorch 2.11.0 in ${FOLDER}/libtorch-2.11.0). The PyPI package torch brings CUDA headers; -DACCELERATE_WITH_CUDA=AUTO builds without."
       OPTIONS ${torch} -DACCELERATE_WITH_CUDA=ON)
# Parts of CUDA in the layout of the wheels, in the folder beside torch.
set(wheel "${FOLDER}/wheel")
file(COPY "${FOLDER}/libtorch-2.11.0/include" DESTINATION "${wheel}/torch")
file(WRITE "${wheel}/torch/lib/libtorch_cuda.so" "")
file(WRITE "${wheel}/nvidia/cu13/include/cuda_runtime_api.h" "")
file(WRITE "${wheel}/nvidia/cu13/lib/libcudart.so.13" "")
set(ENV{CUDA_HOME} "${FOLDER}/nothing")
set(in_wheel "-DTorch_DIR=${wheel}/torch/share/cmake/Torch")
expect("CUDA headers without crt are passed over, with the package that brings it"
       PRINTS "CUDA no (no crt/host_config.h in ${wheel}/nvidia/cu13/include; the PyPI package nvidia-cuda-crt brings it); NCCL no"
       OPTIONS ${in_wheel})
file(WRITE "${wheel}/nvidia/cu13/include/crt/host_config.h" "")
expect("CUDA headers without nv are passed over too"
       PRINTS "CUDA no (no nv/target in ${wheel}/nvidia/cu13/include; the PyPI package nvidia-cuda-cccl brings it); NCCL no"
       OPTIONS ${in_wheel})
file(WRITE "${wheel}/nvidia/cu13/include/cccl/nv/target" "")
expect("nv is also found where toolkits keep it" PRINTS "CUDA yes" OPTIONS ${in_wheel})
file(REMOVE_RECURSE "${wheel}/nvidia/cu13/include/cccl")
file(WRITE "${wheel}/nvidia/cu13/include/nv/target" "")
expect("CUDA in the wheel's folders is found; NCCL only with its header" PRINTS "CUDA yes; NCCL no" OPTIONS ${in_wheel})
file(WRITE "${wheel}/nvidia/nccl/include/nccl.h" "")
expect("NCCL in the wheel's folders is found" PRINTS "CUDA yes; NCCL yes" OPTIONS ${in_wheel})
expect("NCCL=ON without it names the package" FAILS
       PRINTS "Accelerate: ACCELERATE_WITH_NCCL is ON, but it was not found; install a LibTorch with CUDA (the PyPI package torch), or build without it: -DACCELERATE_WITH_NCCL=OFF."
       OPTIONS ${torch} -DACCELERATE_WITH_NCCL=ON)
expect("MPI=ON without it names the package" FAILS
       PRINTS "Accelerate: ACCELERATE_WITH_MPI is ON, but it was not found; install libopenmpi-dev, or build without it: -DACCELERATE_WITH_MPI=OFF."
       OPTIONS ${torch} -DACCELERATE_WITH_MPI=ON -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON)
expect("gloo=ON without it names the package" FAILS
       PRINTS "Accelerate: ACCELERATE_WITH_GLOO is ON, but it was not found; install libgloo-dev, or build without it: -DACCELERATE_WITH_GLOO=OFF."
       OPTIONS ${torch} -DACCELERATE_WITH_GLOO=ON -DACCELERATE_GLOO_INCLUDE=OFF)
foreach(format JPEG PNG)
  string(TOLOWER ${format} lower)
  expect("${format}=ON without it names the package" FAILS
         PRINTS "Accelerate: ACCELERATE_WITH_${format} is ON, but it was not found; install lib${lower}-dev, or build without it: -DACCELERATE_WITH_${format}=OFF."
         OPTIONS ${torch} -DACCELERATE_WITH_${format}=ON -DCMAKE_DISABLE_FIND_PACKAGE_${format}=ON)
endforeach()
expect("AUTO without the parts continues and lists them"
       PRINTS "gloo no (needs libgloo-dev); MPI no (needs libopenmpi-dev); JPEG no (needs libjpeg-dev); PNG no (needs libpng-dev);"
       OPTIONS ${torch} -DCMAKE_DISABLE_FIND_PACKAGE_MPI=ON -DACCELERATE_GLOO_INCLUDE=OFF -DCMAKE_DISABLE_FIND_PACKAGE_JPEG=ON
               -DCMAKE_DISABLE_FIND_PACKAGE_PNG=ON)
expect("OFF is listed" PRINTS "gloo off; MPI off; JPEG off; PNG off;"
       OPTIONS ${torch} -DACCELERATE_WITH_MPI=OFF -DACCELERATE_WITH_GLOO=OFF -DACCELERATE_WITH_JPEG=OFF -DACCELERATE_WITH_PNG=OFF)
expect("a switch in lower case is one" PRINTS "CUDA no (switched off); NCCL no" "MPI off;"
       OPTIONS ${torch} -DACCELERATE_WITH_CUDA=off -DACCELERATE_WITH_MPI=off)
expect("another word than AUTO, ON, OFF is refused for CUDA" FAILS
       PRINTS "Accelerate: ACCELERATE_WITH_CUDA is 'maybe', must be AUTO, ON or OFF."
       OPTIONS ${torch} -DACCELERATE_WITH_CUDA=maybe)
expect("a LibTorch without a dispatch key that works is refused" FAILS
       PRINTS "Accelerate: LibTorch 2.11.0 in ${FOLDER}/libtorch-2.11.0 has no dispatch key by which operators can gather parameters: TESTING_ONLY_GenericWrapper: the check does not compile:"
              "TESTING_ONLY_GenericMode: the check does not compile:" "Fake: the check does not compile:"
              "Use a LibTorch 2.11 or 2.15, which we test. To build without this check, give -DACCELERATE_GATHER_KEY=<key>; sharded training and offloading may then fail."
       OPTIONS ${torch} -DACCELERATE_GATHER_KEY=AUTO)
expect("another dispatch key can be selected, and is not checked" PRINTS "Accelerate 0.2.0: LibTorch 2.11.0" OPTIONS ${torch} -DACCELERATE_GATHER_KEY=Fake)
expect("a dispatch key that is no candidate is refused" FAILS
       PRINTS "Accelerate: ACCELERATE_GATHER_KEY is 'CPU', must be AUTO or one of TESTING_ONLY_GenericWrapper, TESTING_ONLY_GenericMode, Fake."
       OPTIONS ${torch} -DACCELERATE_GATHER_KEY=CPU)
expect("tests need the launcher" FAILS
       PRINTS "Accelerate: the tests start their ranks with accelerate_launch; give -DACCELERATE_BUILD_LAUNCHER=ON, or -DACCELERATE_BUILD_TESTS=OFF."
       OPTIONS ${torch} -DACCELERATE_BUILD_TESTS=ON -DACCELERATE_BUILD_LAUNCHER=OFF)
expect("tests do without the examples" PRINTS "Accelerate 0.2.0: LibTorch 2.11.0"
       OPTIONS ${torch} -DACCELERATE_BUILD_TESTS=ON -DACCELERATE_BUILD_EXAMPLES=OFF)
foreach(filter no_such_test data/shard_test)
  expect("tests are configured with the filter ${filter}" PRINTS "Accelerate 0.2.0: LibTorch 2.11.0"
         OPTIONS ${torch} -DACCELERATE_BUILD_TESTS=ON -DACCELERATE_TEST_FILTER=${filter})
endforeach()
expect("another word than AUTO, ON, OFF is refused" FAILS
       PRINTS "Accelerate: ACCELERATE_WITH_MPI is 'maybe', must be AUTO, ON or OFF."
       OPTIONS ${torch} -DACCELERATE_WITH_MPI=maybe)

if(failures)
  message(FATAL_ERROR "${failures} failed")
endif()
file(REMOVE_RECURSE "${FOLDER}")
