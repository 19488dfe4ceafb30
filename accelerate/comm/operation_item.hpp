// SPDX-License-Identifier: Apache-2.0
// The object that an operation of a group transfers, as a number that the ranks compare.
#pragma once

#include <cstdint>

namespace accelerate::comm {

/// While it exists, the operations that this thread starts transfer the object with this number, such as a unit of a
/// model. If another rank's operation transfers another object, both fail with both numbers, although the tensors have
/// equal shapes. Backends that compare operations compare the numbers, too: threads, mpi, and gloo on one machine or in
/// groups of up to 4 ranks. Scopes may be nested.
class OperationItem {
 public:
  explicit OperationItem(int64_t item);
  ~OperationItem();
  OperationItem(const OperationItem&) = delete;
  OperationItem& operator=(const OperationItem&) = delete;

 private:
  int64_t outer_;
};

}  // namespace accelerate::comm
