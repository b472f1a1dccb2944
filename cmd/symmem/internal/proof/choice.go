package proof

import (
	"regexp"
	"strconv"
)

// Choice is NCCL's choice for one launch.
type Choice struct {
	// If the launch combines several calls, Bytes is their sum and Works their number.
	Collective
	Works int
	// What describes the choice. It is "symmetric kernel " and a name for a kernel over windows,
	// which accesses peers' memory directly; "copy engine, " and a method for copies over windows
	// without a kernel; or "plain " with algorithm and protocol for a kernel that uses NCCL's
	// channels.
	What string
	// Windowed reports whether the launch was over windows.
	Windowed bool
}

var (
	launched = regexp.MustCompile(
		`^(\w+)(?: \[(Symmetric|Copy Engine|Hierarchical CE)\])?: (\d+) Bytes -> (.+)$`)
	symmetric = regexp.MustCompile(`^Kernel (\w+)(?: \w+ \d+)*?(?: nWorks (\d+))?$`)
	plain     = regexp.MustCompile(`^Algo (\S+) proto (\S+) channel{Lo\.\.Hi}={\d+\.\.\d+}`)
)

// ParseChoice parses a message of NCCL's log, without its prefix. ok is false for other messages.
func ParseChoice(message string) (c Choice, ok bool) {
	launch := launched.FindStringSubmatch(message)
	if launch == nil {
		return c, false
	}
	chosen, joined := launch[4], "1"
	switch launch[2] {
	case "Symmetric":
		kernel := symmetric.FindStringSubmatch(chosen)
		if kernel == nil {
			return c, false
		}
		c.What, c.Windowed = "symmetric kernel "+kernel[1], true
		if kernel[2] != "" { // absent in 2.27
			joined = kernel[2]
		}
	case "":
		kernel := plain.FindStringSubmatch(chosen)
		if kernel == nil {
			return c, false
		}
		c.What = "plain " + kernel[1] + "/" + kernel[2]
	default:
		c.What, c.Windowed = "copy engine, "+chosen, true
	}
	bytes, err := strconv.ParseInt(launch[3], 10, 64)
	works, worksErr := strconv.Atoi(joined)
	c.Collective, c.Works = Collective{launch[1], bytes}, works
	return c, err == nil && worksErr == nil
}
