// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/operations/subgroups.hpp"

namespace accelerate::comm {

GroupPtr split(const GroupPtr& group, int64_t color, std::string_view ranks_name) {
  if (group->single()) return group;
  auto signature = CollectiveFingerprint{.operation = Operation::split};
  group->number(signature);
  group->cpu->announce(signature, Agreement::operation_only);
  signature.root = color;
  const auto signatures = group->exchange(signature);
  Subgroup part{.name = fmt::format("{}/{}.{}", group->name, signature.sequence, color),
                .ranks_name = std::string(ranks_name)};
  for (int64_t r = 0; r < group->size; ++r) {
    const auto& theirs = signatures[static_cast<size_t>(r)];
    if (theirs.operation != Operation::split) group->compare(signatures, Agreement::operation_only);
    if (theirs.root != color) continue;
    if (r == group->rank) part.rank = static_cast<int64_t>(part.ranks.size());
    part.ranks.push_back(r);
  }
  return group->make_part(signature, part);
}

GroupPtr duplicate(const GroupPtr& group) {
  if (group->single()) return group;
  CollectiveFingerprint signature{.operation = Operation::duplicate};
  group->begin(signature, Agreement::operation_only, *group->cpu);
  Subgroup part{.name = fmt::format("{}/{}", group->name, signature.sequence),
                .ranks_name = group->ranks_name,
                .rank = group->rank};
  for (int64_t r = 0; r < group->size; ++r) part.ranks.push_back(r);
  GroupPtr twin = group->make_part(signature, part);
  if (group->debug) share_sequence_checker(group, twin);
  return twin;
}

void barrier(const GroupPtr& group) {
  if (group->single()) return;
  CollectiveFingerprint signature{.operation = Operation::barrier};
  group->begin(signature, Agreement::operation_only, *group->cpu);
  c10d::BarrierOptions options;
  options.timeout = group->timeout;
  options.asyncOp = false;
  group->run(*group->cpu, signature, false, [&](c10d::Backend& backend) { return backend.barrier(options); });
}

}  // namespace accelerate::comm
