// SPDX-License-Identifier: Apache-2.0
// The one header of users.
#pragma once

#include <torch/torch.h>

#include "accelerate/accelerator.hpp"
#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/data/memory.hpp"
#include "accelerate/data/mnist.hpp"
#include "accelerate/distributed_data_parallel.hpp"
#include "accelerate/optim/scheduler.hpp"
#include "accelerate/options.hpp"
