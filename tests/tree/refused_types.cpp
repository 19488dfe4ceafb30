// SPDX-License-Identifier: Apache-2.0
// Not part of a program: refused_types.cmake checks that it fails to compile with the sentences below.
#include <string>

#include "accelerate/tree/collectives.hpp"

struct Opaque {
  at::Tensor hidden;
};

void no_tensor(const std::vector<std::string>& names) {
  accelerate::tree::for_each_tensor(names, [](const auto&) {});
}
void no_members(const Opaque& opaque) { (void)accelerate::tree::batch_size(opaque); }
void references(at::Tensor& one, at::Tensor& other, const accelerate::comm::Group& group) {
  (void)accelerate::tree::reduce(std::tie(one, other), group);
}
void a_name_beside_a_tensor(const std::pair<at::Tensor, std::string>& value, const accelerate::comm::Group& group) {
  (void)accelerate::tree::gather(value, group);
}
