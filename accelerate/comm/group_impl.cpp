// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/group_impl.hpp"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/reason.hpp"

namespace accelerate::comm {
namespace {

/// "operation 3 ([4] float32)"; messages between two ranks have no number.
std::string where(const Header& header) {
  if (header.sequence == 0) return fmt::format("a message ({})", describe(header));
  return fmt::format("operation {} ({})", header.sequence, describe(header));
}

std::string missing_text(std::vector<int64_t> missing, const std::vector<int64_t>& labels) {
  if (missing.empty()) return "";
  for (auto& rank : missing) rank = labels.at(static_cast<size_t>(rank));
  return fmt::format("{} {} {} not come.", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "),
                     missing.size() == 1 ? "has" : "have");
}

}  // namespace

std::string_view name_of(Operation operation) { return name(operation); }

Link& Group::Impl::link_of(const at::Tensor& tensor, Operation operation) const {
  if (tensor.is_cpu()) return *cpu;
  if (tensor.is_cuda() && cuda) return *cuda;
  base::fail(ErrorKind::usage, place, name_of(operation), "the tensor is on {}, this group ({}) carries {} tensors",
             tensor.device().str(), backend_name, cuda ? "CPU and CUDA" : "CPU");
}

void Group::Impl::refuse_broken(const Header& header) {
  if (broken_) {
    const std::lock_guard lock(why_mutex_);
    base::fail(ErrorKind::peer, place, name_of(header.operation), "this group is broken since {}", why_);
  }
}

void Group::Impl::number(Header& header) {
  refuse_broken(header);
  header.sequence = ++sequence_;
}

void Group::Impl::begin(Header& header, Agreement agreement, Link& link) {
  number(header);
  bool compared = false;
  try {
    compared = link.announce(header, agreement);
  } catch (const std::exception&) {
    fail_operation(header, timeout, {});
  }
  if (compared || !debug) return;
  compare(exchange(header), agreement);
}

std::vector<Header> Group::Impl::begin_with_headers(Header& header, Agreement agreement) {
  number(header);
  cpu->announce(header, agreement);
  auto headers = exchange(header);
  compare(headers, agreement);
  return headers;
}

std::vector<Header> Group::Impl::exchange(const Header& mine) {
  at::Tensor input = tensor_of(mine);
  at::Tensor output = at::empty({size * input.numel()}, at::kLong);
  run(*cpu, mine, false, [&](c10d::Backend& backend) {
    return backend._allgather_base(output, input, {.timeout = timeout, .asyncOp = false});
  });
  std::vector<Header> headers;
  headers.reserve(static_cast<size_t>(size));
  const std::span all(output.const_data_ptr<int64_t>(), static_cast<size_t>(output.numel()));
  for (size_t r = 0; r < static_cast<size_t>(size); ++r) headers.push_back(decode(all.subspan(r * Header::kWords)));
  return headers;
}

void Group::Impl::compare(const std::vector<Header>& headers, Agreement agreement) {
  const auto& mine = headers.at(static_cast<size_t>(rank));
  if (auto text = disagreement(headers, static_cast<size_t>(rank), agreement, labels)) {
    break_with(fmt::format("operation {} ({}): {}", mine.sequence, name_of(mine.operation), *text));
    throw Error(ErrorKind::peer, place, name_of(mine.operation), *text);
  }
}

void Group::Impl::wait(c10d::Work& work, const Header& header, std::chrono::milliseconds limit, bool on_cuda) {
  if (broken_ && !work.isCompleted()) refuse_broken(header);  // it may never end: what breaks a group drops the rest
  const auto begun = Clock::now();
  try {
    // With a deadline NCCL's wait blocks the host; without one it only makes the stream wait, and its watchdog watches.
    if (on_cuda) {
      work.wait();
    } else {
      work.wait(limit);
    }
  } catch (const std::exception&) {
    fail_operation(header, limit, Clock::now() - begun);
  }
}

void Group::Impl::fail_operation(const Header& header, std::chrono::milliseconds limit, Clock::duration waited) {
  std::string text;
  try {
    throw;
  } catch (const HeadersDiffer& error) {
    // Where two differ, every rank differs from one of them.
    text = disagreement(error.headers, static_cast<size_t>(rank), error.agreement, labels).value();
  } catch (const PeerLost& error) {
    text = fmt::format("{} cannot end: {}", where(header), error.what());
  } catch (const DeadlinePassed& error) {
    text = fmt::format("waited {:g} s in {}", seconds(limit), where(header));
    std::string who = missing_text(error.missing, labels);
    if (who.empty()) who = cpu->ask_after_peers(header);
    text += who.empty() ? "." : "; " + who;
  } catch (const std::exception& error) {
    const bool late = waited >= limit * 9 / 10;
    base::log(base::LogLevel::debug, place, "{}: the backend says: {}", name_of(header.operation), reason_of(error));
    const std::string who = cpu->ask_after_peers(header);
    text = late ? fmt::format("waited {:g} s in {}", seconds(limit), where(header))
                : fmt::format("{} lost the connection to a peer", where(header));
    text += who.empty() ? "." : "; " + who;
  }
  const auto number = header.sequence == 0 ? std::string("a message") : fmt::format("operation {}", header.sequence);
  break_with(fmt::format("{} ({}): {}", number, name_of(header.operation), text));
  throw Error(ErrorKind::peer, place, name_of(header.operation), text);
}

void Group::Impl::break_with(const std::string& why) {
  {
    const std::lock_guard lock(why_mutex_);
    if (!broken_) why_ = why;
    broken_ = true;
  }
  cpu->give_up();
  if (cuda) cuda->give_up();
}

Group Group::Impl::make_part(const Header& header, Subgroup part) {
  for (const int64_t member : part.ranks) part.labels.push_back(labels.at(static_cast<size_t>(member)));
  auto child = std::make_shared<Impl>();
  child->place = place;
  child->rank = part.rank;
  child->size = static_cast<int64_t>(part.ranks.size());
  child->name = part.name;
  child->labels = part.labels;
  child->timeout = timeout;
  child->debug = debug;
  child->device = device;
  const auto begun = Clock::now();
  try {
    child->cpu = cpu->split(part);
    if (cuda) child->cuda = cuda->split(part);
  } catch (const std::exception&) {
    fail_operation(header, timeout, Clock::now() - begun);
  }
  return make_group(std::move(child));
}

void Group::Impl::check_rank(Operation operation, std::string_view what, int64_t value) const {
  if (value >= 0 && value < size) return;
  refuse(operation, fmt::format("{} is {}, must be 0 to {}", what, value, size - 1));
}

void Group::Impl::check_rows(Operation operation, const at::Tensor& whole, const at::Tensor& part) const {
  const bool fits = whole.dim() > 0 && whole.dim() == part.dim() && whole.size(0) == part.size(0) * size &&
                    whole.sizes().slice(1) == part.sizes().slice(1) && whole.dtype() == part.dtype() &&
                    whole.device() == part.device();
  if (fits) return;
  refuse(operation, fmt::format("{} does not hold {} parts of {}", describe(header_of(operation, whole)), size,
                                describe(header_of(operation, part))));
}

void Group::Impl::refuse(Operation operation, std::string_view message) const {
  throw Error(ErrorKind::usage, place, name_of(operation), message);
}

at::Tensor tensor_of(const Header& header) {
  const auto words = encode(header);
  at::Tensor tensor = at::empty({static_cast<int64_t>(words.size())}, at::kLong);
  std::copy(words.begin(), words.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

std::vector<int64_t> all_ranks(int64_t size) {
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Group make_group(std::shared_ptr<Group::Impl> impl) {
  if (impl->cpu) {
    const auto process_group = c10::make_intrusive<c10d::ProcessGroup>(
        c10::make_intrusive<c10d::HashStore>(), static_cast<int>(impl->rank), static_cast<int>(impl->size));
    if (impl->device) process_group->setBoundDeviceId(impl->device);  // setBackend copies it
    process_group->setBackend(c10::DeviceType::CPU, impl->cpu->tag, impl->cpu->backend);
    process_group->setDefaultBackend(impl->cpu->tag);
    if (impl->cuda) process_group->setBackend(c10::DeviceType::CUDA, impl->cuda->tag, impl->cuda->backend);
    process_group->setGroupName(impl->name);
    impl->process_group = process_group;
    impl->backend_name = impl->cuda ? fmt::format("{}+{}", impl->cuda->name, impl->cpu->name) : impl->cpu->name;
  }
  return Group(std::move(impl));
}

}  // namespace accelerate::comm
