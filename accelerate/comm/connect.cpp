// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Logging.h>

#include <chrono>
#include <cstdlib>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/backends.hpp"
#include "accelerate/comm/group_impl.hpp"
#include "accelerate/comm/link.hpp"
#include "accelerate/comm/reason.hpp"
#include "accelerate/comm/rendezvous.hpp"

namespace accelerate::comm {
namespace {

/// A backend's link; whatever it throws becomes an Error.
std::shared_ptr<Link> connect_row(const BackendRow& row, const LinkContext& context) {
  const auto begun = Clock::now();
  try {
    return row.connect(context);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    base::log(base::LogLevel::debug, context.place, "connect: {} says: {}", row.name, error.what());
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
    throw Error(
        ErrorKind::peer, context.place, "connect",
        connect_failure(row.name, context.process.world_size, context.options.timeout, waited, reason_of(error)));
  }
}

}  // namespace

Group connect(const env::ProcessEnv& process, const ConnectOptions& options) {
  const Place place{.rank = process.rank, .world_size = process.world_size, .host = base::host_name()};
  if (process.world_size == 1 && !options.force_group) {
    auto impl = std::make_shared<Group::Impl>();
    impl->place = place;
    impl->timeout = options.timeout;
    return Group(std::move(impl));
  }
  const bool cuda = options.device && options.device->is_cuda();
  // c10d logs a backtrace with every lost connection; our errors say what there is to say. NCCL's watchdog, which ends
  // the process, is heard.
  if (::setenv("TORCH_CPP_LOG_LEVEL", cuda ? "ERROR" : "FATAL", 0) == 0) c10::initLogging();
  const auto variables = env::current_variables();
  const BackendRow& cpu = choose_backend(variables, options, backend_table(), place);

  LinkContext context{.process = process, .options = options, .variables = variables, .place = place};
  if (cpu.uses_store) context.store = meet(process, place, options.timeout);

  auto impl = std::make_shared<Group::Impl>();
  impl->place = place;
  impl->rank = process.rank;
  impl->size = process.world_size;
  impl->name = context.name;
  impl->labels = all_ranks(impl->size);
  impl->timeout = options.timeout;
  impl->debug = options.debug;
  impl->cpu = connect_row(cpu, context);
  if (cuda) {
    impl->device = options.device;
    if (!context.store) context.store = meet_over(*impl->cpu->backend, context.process, place, options.timeout);
    impl->cuda = connect_row(gpu_backend(backend_table(), place), context);
  }
  return make_group(std::move(impl));
}

}  // namespace accelerate::comm
