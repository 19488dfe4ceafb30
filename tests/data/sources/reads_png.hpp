// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "accelerate/base/error.hpp"
#include "accelerate/data/sources/image.hpp"

namespace testing {

/// True if this build has libpng.
inline bool reads_png() {
  try {
    (void)accelerate::data::decode_png({});
  } catch (const accelerate::data::BrokenImage&) {
    return true;
  } catch (const accelerate::Error&) {
  }
  return false;
}

}  // namespace testing
