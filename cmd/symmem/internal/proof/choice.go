package proof

import (
	"regexp"
	"strconv"
)

// Choice is the kernel that NCCL chose for a launch.
type Choice struct {
	// Collective identifies the call. If the launch combines several calls, Bytes is the sum of
	// their sizes and Works is their number.
	Collective
	Works int
	// Description is "symmetric kernel " followed by the name of a window kernel, "copy engine, "
	// followed by the method of copying between windows without a kernel, or "plain " followed by the
	// algorithm and protocol of a kernel that uses NCCL's channels.
	Description string
	// Windowed reports whether the launch used windows.
	Windowed bool
}

var (
	launchLine = regexp.MustCompile(
		`^(\w+)(?: \[(Symmetric|Copy Engine|Hierarchical CE)\])?: (\d+) Bytes -> (.+)$`)
	symmetricKernel = regexp.MustCompile(`^Kernel (\w+)(?: \w+ \d+)*?(?: nWorks (\d+))?$`)
	plainKernel     = regexp.MustCompile(`^Algo (\S+) proto (\S+) channel{Lo\.\.Hi}={\d+\.\.\d+}`)
)

// ParseChoice parses a message of NCCL's log, without its prefix. ok is false if the message does
// not describe a launch.
func ParseChoice(message string) (c Choice, ok bool) {
	launch := launchLine.FindStringSubmatch(message)
	if launch == nil {
		return c, false
	}
	chosen, worksText := launch[4], "1"
	switch launch[2] {
	case "Symmetric":
		kernel := symmetricKernel.FindStringSubmatch(chosen)
		if kernel == nil {
			return c, false
		}
		c.Description, c.Windowed = "symmetric kernel "+kernel[1], true
		if kernel[2] != "" { // NCCL 2.27 omits it
			worksText = kernel[2]
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
	works, worksErr := strconv.Atoi(worksText)
	c.Collective, c.Works = Collective{launch[1], bytes}, works
	return c, err == nil && worksErr == nil
}
