// SPDX-License-Identifier: Apache-2.0
#include "accelerate/precision/autocast.hpp"

#include <ATen/autocast_mode.h>

namespace accelerate::precision {
namespace {

void set(const AutocastRegion& region) {
  at::autocast::set_autocast_enabled(region.device, region.enabled);
  at::autocast::set_autocast_dtype(region.device, region.dtype);
  at::autocast::set_autocast_cache_enabled(region.cache);
}

}  // namespace

Autocast::Autocast(const std::optional<AutocastRegion>& region) {
  if (!region) return;
  before_ = {.device = region->device,
             .dtype = at::autocast::get_autocast_dtype(region->device),
             .enabled = at::autocast::is_autocast_enabled(region->device),
             .cache = at::autocast::is_autocast_cache_enabled()};
  at::autocast::increment_nesting();
  set(*region);
}

Autocast::~Autocast() {
  if (!before_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  set(*before_);
}

void drop_cached_casts() { at::autocast::clear_cache(); }

}  // namespace accelerate::precision
