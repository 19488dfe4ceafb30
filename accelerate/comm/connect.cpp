// SPDX-License-Identifier: Apache-2.0
#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/backends.hpp"
#include "accelerate/comm/group_impl.hpp"
#include "accelerate/comm/link.hpp"
#include "accelerate/comm/rendezvous.hpp"

namespace accelerate::comm {
namespace {

const BackendRow& row_of(std::string_view name, const Place& place) {
  const auto table = backend_table();
  const auto row = std::find_if(table.begin(), table.end(), [&](const BackendRow* each) { return each->name == name; });
  if ((*row)->connect == nullptr) {
    base::fail(ErrorKind::environment, place, "connect", "backend {} is needed, which this build lacks; {}", name,
               (*row)->missing);
  }
  return **row;
}

/// A backend's link; whatever it throws becomes an Error.
std::shared_ptr<Link> connect_row(const BackendRow& row, const LinkContext& context) {
  try {
    return row.connect(context);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
    base::fail(ErrorKind::peer, context.place, "connect", "{} could not connect the {} ranks within {:g} s: {}",
               row.name, context.process.world_size, static_cast<double>(context.options.timeout.count()) / 1000.0,
               c10_error != nullptr ? c10_error->what_without_backtrace() : error.what());
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
  // c10d logs a backtrace with every lost connection; our errors say what there is to say.
  if (::setenv("TORCH_CPP_LOG_LEVEL", "ERROR", 0) == 0) c10::initLogging();
  const auto variables = env::current_variables();
  const BackendRow& cpu = row_of(choose_backend(variables, options, backend_table(), place), place);
  const bool cuda = options.device && options.device->is_cuda();

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
    impl->cuda = connect_row(row_of("nccl", place), context);
  }
  return make_group(std::move(impl));
}

}  // namespace accelerate::comm
