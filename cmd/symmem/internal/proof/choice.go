package proof

import (
	"regexp"
	"strconv"
)

// Choice describes the kernel that NCCL chose for a launch.
type Choice struct {
	Collective     // Bytes is the sum over all calls
	Calls      int // number of calls in the launch
	// Description begins with "symmetric kernel " if the kernel uses windows, "copy engine, " for
	// copies between windows, and otherwise "plain ".
	Description string
	Windowed    bool
}

var (
	launchLine = regexp.MustCompile(
		`^(\w+)(?: \[(Symmetric|Copy Engine|Hierarchical CE)\])?: (\d+) Bytes -> (.+)$`)
	symmetricKernel = regexp.MustCompile(`^Kernel (\w+)(?: \w+ \d+)*?(?: nWorks (\d+))?$`)
	plainKernel     = regexp.MustCompile(`^Algo (\S+) proto (\S+) channel{Lo\.\.Hi}={\d+\.\.\d+}`)
)

// ParseChoice parses a message of NCCL's log, without its prefix. ok is false if it is not about a
// launch.
func ParseChoice(message string) (c Choice, ok bool) {
	launch := launchLine.FindStringSubmatch(message)
	if launch == nil {
		return c, false
	}

	chosen, callsText := launch[4], "1"
	switch launch[2] {
	case "Symmetric":
		kernel := symmetricKernel.FindStringSubmatch(chosen)
		if kernel == nil {
			return c, false
		}

		c.Description, c.Windowed = "symmetric kernel "+kernel[1], true
		if kernel[2] != "" { // NCCL 2.27 omits it
			callsText = kernel[2]
		}
	case "":
		kernel := plainKernel.FindStringSubmatch(chosen)
		if kernel == nil {
			return c, false
		}

		c.Description = "plain " + kernel[1] + "/" + kernel[2]
	default:
		c.Description, c.Windowed = "copy engine, "+chosen, true
	}

	bytes, err := strconv.ParseInt(launch[3], 10, 64)
	calls, callsErr := strconv.Atoi(callsText)
	c.Collective, c.Calls = Collective{launch[1], bytes}, calls
	return c, err == nil && callsErr == nil
}
