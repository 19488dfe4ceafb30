// SPDX-License-Identifier: Apache-2.0
// Signature of the next operation of a rank: compared across ranks, and shown in messages.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

enum class Operation : int64_t {
  all_reduce,
  broadcast,
  all_gather,
  gather,
  scatter,
  reduce,
  reduce_scatter,
  all_to_all,
  send,
  recv,
  barrier,
  split,
  duplicate
};

std::string_view collective_name(Operation operation);

/// Returns "float32", "bfloat16", "bool": the names of Python and NumPy.
std::string_view dtype_name(at::ScalarType dtype);

/// One operation of one rank.
struct CollectiveFingerprint {
  static constexpr size_t kMaxDims = 16;
  static constexpr size_t kWords = 9 + kMaxDims;

  Operation operation = Operation::barrier;
  int64_t sequence = 0;  ///< number of the operation in its group, from 1
  int64_t root = -1;     ///< -1 if the operation has no root
  int64_t reduce = -1;   ///< ReduceOp, or -1
  std::optional<at::ScalarType> dtype{};
  at::DeviceType device = at::kCPU;
  at::DimVector shape{};
  int64_t item = -1;        ///< the transferred object, see OperationItem
  bool into_given = false;  ///< all_gather_async requires equal parts; all_gather exchanges signatures first

  bool operator==(const CollectiveFingerprint&) const = default;
};

/// Contains the item of this thread.
///
/// \param op    Unset if the operation has no reduction.
/// \param root  -1 if the operation has no root.
CollectiveFingerprint fingerprint_of(Operation operation, const at::Tensor& tensor,
                                     std::optional<ReduceOp> op = std::nullopt, int64_t root = -1);

/// Sets the number of the object that the operations of this thread transfer; -1 if there is none. See OperationItem.
/// \returns the number before.
int64_t exchange_item_of_thread(int64_t item);
[[nodiscard]] int64_t item_of_thread();

/// Returns "[64, 12] float32", or "no tensor".
std::string describe_fingerprint(const CollectiveFingerprint& signature);

/// Encodes the signature in a fixed number of words, so that one all-gather of equal parts can exchange signatures.
std::array<int64_t, CollectiveFingerprint::kWords> encode(const CollectiveFingerprint& signature);
CollectiveFingerprint decode(std::span<const int64_t> words);

/// The parts of two ranks' calls that must be equal.
enum class Agreement { whole_shape, all_but_first, dtype_only, operation_only };

/// Returns the error text for `rank` if the signatures (one per rank) do not match; otherwise nothing. The text names
/// the first rank that differs, with both values. `job_ranks` contains the ranks' numbers in the job.
std::optional<std::string> disagreement(std::span<const CollectiveFingerprint> signatures, size_t rank,
                                        Agreement agreement, std::span<const int64_t> job_ranks);

}  // namespace accelerate::comm
