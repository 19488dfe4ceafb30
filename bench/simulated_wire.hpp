// SPDX-License-Identifier: Apache-2.0
// A process that is rank 0 of 2 without a second process. A collective copies this rank's values in place of the
// peer's, and completes after the time that the bytes need in a ring of many ranks, during which the processor is free,
// as with a network card. So the times are those of a rank, but the values are not.
#pragma once

namespace bench {

/// Registers the backend and selects it by the environment. Call it before the first Accelerator.
/// \param gigabytes_per_second  Bandwidth; 0 simulates a wire without delay.
void simulate_wire(double gigabytes_per_second);

}  // namespace bench
