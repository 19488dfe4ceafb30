// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/group.hpp"
