// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/group.hpp"

#include "accelerate/comm/group_impl.hpp"

namespace accelerate::comm {

Group::Group() : impl_(std::make_shared<Impl>()) {}
Group::Group(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}

int64_t Group::rank() const { return impl_->rank; }
int64_t Group::size() const { return impl_->size; }
const std::string& Group::backend() const { return impl_->backend_name; }
const Place& Group::place() const { return impl_->place; }
std::chrono::milliseconds Group::timeout() const { return impl_->timeout; }
c10::intrusive_ptr<c10d::ProcessGroup> Group::process_group() const { return impl_->process_group; }

void Group::barrier() const {
  if (impl_->single()) return;
  Header header{.operation = Operation::barrier};
  impl_->begin(header, Agreement::operation_only, *impl_->cpu);
  c10d::BarrierOptions options;
  options.timeout = impl_->timeout;
  options.asyncOp = false;
  impl_->run(*impl_->cpu, header, false, [&](c10d::Backend& backend) { return backend.barrier(options); });
}

Group Group::split(int64_t color) const {
  if (impl_->single()) return *this;
  auto header = Header{.operation = Operation::split};
  impl_->number(header);
  header.root = color;
  const auto headers = impl_->exchange(header);
  Subgroup part{.name = fmt::format("{}/{}.{}", impl_->name, header.sequence, color)};
  for (int64_t r = 0; r < impl_->size; ++r) {
    const auto& theirs = headers[static_cast<size_t>(r)];
    if (theirs.operation != Operation::split) impl_->compare(headers, Agreement::operation_only);
    if (theirs.root != color) continue;
    if (r == impl_->rank) part.rank = static_cast<int64_t>(part.ranks.size());
    part.ranks.push_back(r);
  }
  return impl_->make_part(header, part);
}

Group Group::duplicate() const {
  if (impl_->single()) return *this;
  Header header{.operation = Operation::duplicate};
  impl_->begin(header, Agreement::operation_only, *impl_->cpu);
  Subgroup part{.name = fmt::format("{}/{}", impl_->name, header.sequence), .rank = impl_->rank};
  for (int64_t r = 0; r < impl_->size; ++r) part.ranks.push_back(r);
  return impl_->make_part(header, part);
}

bool Pending::done() const { return !impl_ || impl_->finished || impl_->work->isCompleted(); }

void Pending::wait() {
  if (impl_ && !impl_->finished) impl_->wait(impl_->group->timeout);
}

void Pending::wait(std::chrono::milliseconds timeout) {
  if (impl_) impl_->wait(timeout);
}

void Pending::Impl::wait(std::chrono::milliseconds limit) {
  if (finished) return;
  if (work) group->wait(*work, header, limit, wire.is_cuda());
  finished = true;
  work.reset();
  const at::NoGradGuard no_grad;
  if (copy_back) target.copy_(dense);
  if (divide_by > 1) target.div_(divide_by);
}

}  // namespace accelerate::comm
