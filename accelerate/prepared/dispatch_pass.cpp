// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/dispatch_pass.hpp"

namespace accelerate::prepared {

at::Tensor scatter_bytes(const comm::Group& group, const std::vector<at::Tensor>& bytes) {
  return group.scatter(bytes, /*root=*/0);
}

void fail_as_reader(const Place& place, const std::string& failure) {
  base::fail(ErrorKind::data, place, "loader", "rank 0, which reads for all ranks (dispatch_batches), failed: {}",
             failure);
}

void refuse_to_dispatch(const Place& place) {
  base::fail(
      ErrorKind::usage, place, "prepare",
      "dispatch_batches is on, and a batch of this loader holds something that cannot be sent to other ranks; a "
      "batch is made of tensors, numbers, enums, strings, and pairs, tuples, vectors, maps, optionals and structs "
      "of them, or turn dispatch_batches off");
}

}  // namespace accelerate::prepared
