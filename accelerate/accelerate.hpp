// SPDX-License-Identifier: Apache-2.0
// The one header of users.
#pragma once

#if __cplusplus < 202002L
#error Accelerate is C++20: compile with -std=c++20, or link the CMake target accelerate::accelerate, which asks for it
#include <accelerate_is_cpp20_see_the_line_above>  // ends the compilation here, before hundreds of errors that follow
#endif

#include <torch/torch.h>

#include "accelerate/accelerator.hpp"
#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/data/combinators/cache.hpp"
#include "accelerate/data/combinators/concatenate.hpp"
#include "accelerate/data/combinators/filter.hpp"
#include "accelerate/data/combinators/map.hpp"
#include "accelerate/data/combinators/random_split.hpp"
#include "accelerate/data/combinators/repeat.hpp"
#include "accelerate/data/combinators/shuffle_buffer.hpp"
#include "accelerate/data/combinators/subset.hpp"
#include "accelerate/data/combinators/take.hpp"
#include "accelerate/data/combinators/with_classes.hpp"
#include "accelerate/data/combinators/zip.hpp"
#include "accelerate/data/dataset.hpp"
#include "accelerate/data/memory.hpp"
#include "accelerate/data/sources/cifar.hpp"
#include "accelerate/data/sources/csv.hpp"
#include "accelerate/data/sources/image_folder.hpp"
#include "accelerate/data/sources/mnist.hpp"
#include "accelerate/data/sources/npy.hpp"
#include "accelerate/data/sources/tokens.hpp"
#include "accelerate/data/stream_loader.hpp"
#include "accelerate/data/transforms/normalize.hpp"
#include "accelerate/data/transforms/random_crop.hpp"
#include "accelerate/data/transforms/random_flip.hpp"
#include "accelerate/data/transforms/to_float.hpp"
#include "accelerate/data/transforms/transform.hpp"
#include "accelerate/distributed_data_parallel.hpp"
#include "accelerate/gradient/hooks/compress.hpp"
#include "accelerate/gradient/hooks/function.hpp"
#include "accelerate/gradient/hooks/power_sgd.hpp"
#include "accelerate/optim/ema.hpp"
#include "accelerate/optim/schedules/constant.hpp"
#include "accelerate/optim/schedules/lambda.hpp"
#include "accelerate/options.hpp"
