// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/compiled_host.hpp"

#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <torch/version.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace accelerate::nn::compiled {
namespace {

std::string minor_version(const std::string& version) {
  const auto minor = version.find('.');
  return version.substr(0, minor == std::string::npos ? minor : version.find('.', minor + 1));
}

std::string major_version(const std::string& version) { return version.substr(0, version.find('.')); }

}  // namespace

std::set<std::string> processor_flags_in(const std::string& cpuinfo) {
  std::istringstream lines(cpuinfo);
  for (std::string line; std::getline(lines, line);) {
    const auto colon = line.find(':');
    if (colon == std::string::npos || !(line.starts_with("flags") || line.starts_with("Features"))) continue;
    std::istringstream words(line.substr(colon + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

Host this_host() {
  struct utsname system {};
  ::uname(&system);
  std::ifstream cpuinfo("/proc/cpuinfo");
  return {.torch = fmt::format("{}.{}.{}", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR, TORCH_VERSION_PATCH),
          .machine = system.machine,
          .processor_flags = processor_flags_in({std::istreambuf_iterator<char>(cpuinfo), {}})};
}

void check_host(const Record& record, const Host& host, const archive::Origin& origin) {
  if (minor_version(record.torch) != minor_version(host.torch)) {
    origin.fail(ErrorKind::environment,
                "the package was exported with torch {}, this program uses LibTorch {}; export the module with "
                "torch {}",
                record.torch, host.torch, minor_version(host.torch));
  }
  if (record.machine != host.machine) {
    origin.fail(ErrorKind::environment,
                "the package was compiled on {}, this machine is {}; export the module on a machine of this type",
                record.machine, host.machine);
  }
  std::vector<std::string> missing;
  for (const std::string& flag : record.processor_flags) {
    if (!host.processor_flags.contains(flag)) missing.push_back(flag);
  }
  if (missing.empty()) return;
  origin.fail(ErrorKind::environment,
              "the package was compiled for a processor with {} instruction sets, this processor lacks {} of "
              "them: {}; export the module on this machine",
              record.processor_flags.size(), missing.size(), fmt::join(missing, ", "));
}

void check_device(const Record& record, c10::Device device, const DeviceProperties& here,
                  const archive::Origin& origin) {
  const std::string type = c10::DeviceTypeName(device.type(), /*lower_case=*/true);
  if (record.device != type) {
    origin.fail(ErrorKind::environment,
                "the package was compiled for {}, the parameters are on {}; move the module with to(), or export "
                "it on {}",
                record.device, device.str(), type);
  }
  if (record.cuda_capability != here.capability) {
    origin.fail(ErrorKind::environment,
                "the package was compiled for compute capability {}, {} has {}; export the module on such a GPU",
                record.cuda_capability, device.str(), here.capability.empty() ? "none in this build" : here.capability);
  }
  if (major_version(record.cuda) == major_version(here.cuda)) return;
  origin.fail(ErrorKind::environment,
              "the package was exported with CUDA {}, this program uses CUDA {}; export the module with a torch for "
              "CUDA {}",
              record.cuda, here.cuda, major_version(here.cuda));
}

}  // namespace accelerate::nn::compiled
