// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Logging.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/core/backend_table.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/deadline_call.hpp"
#include "accelerate/comm/core/group_core.hpp"
#include "accelerate/comm/core/peer_error_text.hpp"
#include "accelerate/comm/group.hpp"
#include "accelerate/comm/operations/subgroups.hpp"
#include "accelerate/comm/rendezvous/store.hpp"
#include "accelerate/comm/threads/run_ranks.hpp"

namespace accelerate::comm {
namespace {

/// Connects one backend. Every exception is converted to an Error.
std::shared_ptr<Connection> connect_row(const BackendRow& row, const ConnectionContext& context) {
  const auto begun = Clock::now();
  try {
    return row.connect(context);
  } catch (const Error&) {
    throw;
  } catch (const DeadlineExceeded& error) {
    const bool one = error.missing.size() == 1;
    const auto text = fmt::format("{} could not connect the {} ranks within {:g} s; {}", row.name,
                                  context.process.world_size, seconds(context.options.timeout),
                                  error.missing.empty() ? "a rank cannot be reached"
                                                        : fmt::format("{} {} did not join", one ? "rank" : "ranks",
                                                                      fmt::join(error.missing, ", ")));
    throw Error(ErrorKind::peer, context.place, "connect", text, error.missing);
  } catch (const std::exception& error) {
    base::log(base::LogLevel::debug, context.place, "connect: {} reports: {}", row.name, error.what());
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
    throw Error(
        ErrorKind::peer, context.place, "connect",
        connect_failure(row.name, context.process.world_size, context.options.timeout, waited, reason_of(error)));
  }
}

/// Connects the backend for tensors on the group's device.
void connect_device(GroupCore& group, at::Device device, ConnectionContext& context) {
  group.device = device;
  if (!context.store) context.store = group.cpu->store();
  if (!context.store) {
    context.store = rendezvous_store_over(*group.cpu->backend, context.process, context.place, context.options.timeout);
  }
  group.on_device = connect_row(device_backend(device.type(), backend_table(), context.place), context);
}

}  // namespace

Group connect(const env::ProcessEnv& process, const ConnectOptions& given) {
  ConnectOptions options = given;
  options.timeout = std::min(options.timeout, kMaxWait);
  const RankContext place{.rank = process.rank, .world_size = process.world_size, .host = base::host_name()};
  if (process.world_size == 1 && !options.force_group) {
    auto group = std::make_shared<GroupCore>();
    group->place = place;
    group->timeout = options.timeout;
    return Group(std::move(group));
  }
  const bool on_device = options.device && !options.device->is_cpu();
  // c10d logs a backtrace for every lost connection, which our errors already describe. Messages of NCCL's watchdog,
  // which ends the process, are kept.
  if (::setenv("TORCH_CPP_LOG_LEVEL", on_device ? "ERROR" : "FATAL", 0) == 0) c10::initLogging();
  const auto variables = env::current_variables();
  const auto table = backend_table();
  const BackendRow& cpu = choose_backend(variables, options, table, place);

  ConnectionContext context{.process = process, .options = options, .variables = variables, .place = place};
  if (cpu.uses_store) context.store = rendezvous_store(process, place, options.timeout);

  auto group = std::make_shared<GroupCore>();
  group->place = place;
  group->rank = process.rank;
  group->size = process.world_size;
  group->name = context.name;
  group->job_ranks = all_ranks(group->size);
  group->timeout = options.timeout;
  group->debug = options.debug;
  group->cpu = connect_row(cpu, context);
  if (on_device) connect_device(*group, *options.device, context);
  return Group(with_process_group(std::move(group)));
}

Group with_device(const Group& group, at::Device device) {
  if (group.core_->single() || group.device() == device) return group;
  auto core = duplicate(group.core_);
  const env::ProcessEnv process{.rank = core->rank, .world_size = core->size};
  const ConnectOptions options{.timeout = core->timeout, .device = device};
  const env::Variables variables;
  ConnectionContext context{
      .process = process, .options = options, .variables = variables, .place = core->place, .name = core->name};
  connect_device(*core, device, context);
  return Group(with_process_group(std::move(core)));
}

void run_threads(int64_t world_size, const std::function<void(Group)>& rank_main, std::chrono::milliseconds timeout) {
  run_ranks(
      world_size, [&](GroupPtr group) { rank_main(Group(std::move(group))); }, std::min(timeout, kMaxWait));
}

}  // namespace accelerate::comm
