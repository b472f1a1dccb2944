// The arguments of the probes. out has one word for each thread of the grid.
#pragma once
#include <device.h>

struct Probe {
	u64* out;
	u64 argument;
};
