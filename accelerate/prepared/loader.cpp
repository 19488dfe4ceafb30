// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/loader.hpp"

#include <string>

namespace accelerate::prepared {

OpenLoop::OpenLoop(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
  shared_->open_loops.push_back(&info);
}

OpenLoop::~OpenLoop() { std::erase(shared_->open_loops, &info); }

void share_out(data::Loader& loader, const comm::Group& group, const LoaderOptions& options, const Place& place) {
  loader.shard(group.rank(), group.size(), options.even_batches, place);
  if (!loader.options().shuffle || group.size() == 1) return;
  loader.set_seed(std::stoull(group.broadcast_bytes(std::to_string(loader.seed()))));
}

}  // namespace accelerate::prepared
