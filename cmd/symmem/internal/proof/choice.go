package proof

import (
	"regexp"
	"strconv"
)

// Choice is what NCCL chose for one launch.
type Choice struct {
	// Call is the call; its Bytes are those of all calls that the launch joins, whose number is Works.
	Call
	Works int
	// What was chosen: "symmetric kernel " and its name, which is one over windows, that reads and
	// writes peers' memory directly; "copy engine, " and how, which copies over windows without a
	// kernel; or "plain " with algorithm and protocol, a kernel that goes through NCCL's channels.
	What string
	// Windowed reports whether the launch went over windows.
	Windowed bool
}

var (
	launched = regexp.MustCompile(
		`^(\w+)(?: \[(Symmetric|Copy Engine|Hierarchical CE)\])?: (\d+) Bytes -> (.+)$`)
	symmetric = regexp.MustCompile(`^Kernel (\w+)(?: \w+ \d+)*?(?: nWorks (\d+))?$`)
	plain     = regexp.MustCompile(`^Algo (\S+) proto (\S+) channel{Lo\.\.Hi}={\d+\.\.\d+}`)
)

// ParseChoice reads a message of NCCL's log, without its prefix. It is false for a message about
// something else.
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
		if kernel[2] != "" { // 2.27 does not say it
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
	c.Call, c.Works = Call{launch[1], bytes}, works
	return c, err == nil && worksErr == nil
}
