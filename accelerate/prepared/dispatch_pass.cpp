// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/dispatch_pass.hpp"

#include <ATen/ops/from_blob.h>

#include "accelerate/comm/error_context.hpp"

namespace accelerate::prepared {

std::vector<size_t> data_ranks(const job::MeshGroups& mesh) {
  std::vector<size_t> ranks;
  for (int64_t rank = 0; rank < mesh.world.size(); ++rank) {
    ranks.push_back(static_cast<size_t>(mesh.data_rank_of(rank)));
  }
  return ranks;
}

at::Tensor scatter_bytes(const comm::Group& group, const std::vector<at::Tensor>& bytes) {
  return comm::with_operation_context("loader",
                                      "batches that rank 0 reads for all (dispatch_batches) are not handed out",
                                      group.place(), [&] { return group.scatter(bytes, /*root=*/0); });
}

ReaderInfo broadcast_reader_info(const ReaderInfo& mine, const comm::Group& group) {
  std::string bytes;
  if (group.rank() == 0) {
    const auto packed = tree::pack(mine);
    bytes.assign(static_cast<const char*>(packed.const_data_ptr()), packed.nbytes());
  }
  bytes = group.broadcast_bytes(bytes);
  const auto size = static_cast<int64_t>(bytes.size());
  return tree::unpack<ReaderInfo>(at::from_blob(bytes.data(), {size}, at::TensorOptions().dtype(at::kByte)));
}

void throw_reader_failure(const RankContext& place, const std::string& failure) {
  base::fail(ErrorKind::data, place, "loader", "rank 0, which reads for all ranks (dispatch_batches), failed: {}",
             failure);
}

void throw_pass_mismatch(const RankContext& place, int64_t mine, int64_t of_reader) {
  base::fail(
      ErrorKind::usage, place, "loader",
      "this rank is in pass {} of the loader, and rank 0, which reads for all ranks (dispatch_batches), gives "
      "batches of its pass {}; break out of the loop at the same batch on all ranks, or turn dispatch_batches off",
      mine, of_reader);
}

void throw_not_packable(const RankContext& place) {
  base::fail(
      ErrorKind::usage, place, "prepare",
      "dispatch_batches is on, and a batch of this loader holds something that cannot be sent to other ranks; a "
      "batch is made of tensors, numbers, enums, strings, and pairs, tuples, vectors, maps, optionals and structs "
      "of them, or turn dispatch_batches off");
}

void refuse_unnamed_members(std::string_view batch, const RankContext& place) {
  base::fail(
      ErrorKind::usage, place, "prepare",
      "dispatch_batches is on, and tree_members() of a struct in {} does not name all of its members: the others "
      "would be empty on every rank but rank 0; name all members, or turn dispatch_batches off",
      batch);
}

}  // namespace accelerate::prepared
