// SPDX-License-Identifier: Apache-2.0
// Random numbers: a device generator contains a CPU generator, which the kernels use.
#pragma once

#include <ATen/core/Generator.h>

namespace stand_in {

at::Generator new_generator(c10::DeviceIndex device);
const at::Generator& default_generator(c10::DeviceIndex device);
/// The contained CPU generator.
at::Generator host_generator(const at::Generator& generator);

}  // namespace stand_in
