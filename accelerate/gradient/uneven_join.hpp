// SPDX-License-Identifier: Apache-2.0
// Training with different numbers of batches per rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/gradient/gradient_reducer.hpp"

namespace accelerate::gradient {

struct JoinOptions {
  /// If true, gradients are divided by the number of all ranks, as in PyTorch's Join by default, so ranks without
  /// batches count as zeros. If false, they are divided by the number of ranks that still have batches.
  bool divide_by_all_ranks = true;
};

/// One model in an UnevenJoin.
struct JoinModel {
  GradientReducer* gradient_reducer = nullptr;  ///< null if other models' reducers reduce its parameters
  BufferBroadcast* buffers = nullptr;           ///< null if its buffers are not broadcast
};

/// A region in which ranks may run out of batches at different times.
///
/// Every reduction and buffer broadcast in it is announced by one small reduction. A rank that calls finish() has no
/// batches left: it joins the reductions of the other ranks with zeros until all ranks have called it. Then every
/// parameter and buffer is set to that of a rank with the most batches (the highest of them, as in PyTorch). Optimizer
/// states are not synchronised (schedules of prepared jobs are, see at_end), and a rank that finished earlier has no
/// gradients then.
///
/// All ranks construct it with the same models in the same order. Inside it every rank with batches runs the same
/// reductions; they do not overlap with backward. Not thread-safe.
class UnevenJoin {
 public:
  using AtEnd = std::function<void(const comm::Group& group, int64_t root)>;
  /// \param group   For exclusive use by this region: pass Group::duplicate().
  /// \param at_end  Called after parameters and buffers are equal, with the group and the source rank; not with a
  ///                single rank.
  UnevenJoin(comm::Group group, std::vector<JoinModel> models, JoinOptions options = {}, AtEnd at_end = {});
  /// Calls finish(), unless an exception propagates. Errors of other ranks are logged.
  ~UnevenJoin();
  UnevenJoin(const UnevenJoin&) = delete;
  UnevenJoin& operator=(const UnevenJoin&) = delete;

  /// Announces that this rank has no more batches. Returns after all ranks have called it.
  void finish();

 private:
  struct RankCoordinator;
  void attach(JoinCoordinator* coordinator);
  void shadow(int64_t operation);

  comm::Group group_;
  std::vector<JoinModel> models_;
  std::unique_ptr<RankCoordinator> coordinator_;
  AtEnd at_end_;
  int exceptions_;
  bool finished_ = false;
};

}  // namespace accelerate::gradient
