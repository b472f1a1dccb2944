package proof

import (
	"fmt"
	"strconv"
	"strings"
)

// Engine is what NCCL runs a collective with.
type Engine string

// The engines.
const (
	// Symmetric is a kernel over windows, which reads and writes peers' memory directly.
	Symmetric Engine = "symmetric"
	// CopyEngine is a series of copies over windows, without a kernel.
	CopyEngine Engine = "copy engine"
	// Plain is a kernel that goes through NCCL's channels.
	Plain Engine = "plain"
)

// Choice is what NCCL chose for one launch.
type Choice struct {
	// Collective is NCCL's name of the operation, such as "AllReduce".
	Collective string `json:"collective"`
	// Bytes are the count that the call was given times the size of an element, of all calls that
	// the launch joins.
	Bytes  int64  `json:"bytes"`
	Engine Engine `json:"engine"`
	// Kernel names a symmetric kernel, such as "AllReduce_RSxLD_AGxST", or says how a copy engine
	// works.
	Kernel string `json:"kernel,omitempty"`
	// Algorithm and Protocol are those of a plain kernel, such as RING and SIMPLE.
	Algorithm string `json:"algorithm,omitempty"`
	Protocol  string `json:"protocol,omitempty"`
	// Channels is the number of blocks of the kernel, and Threads that of threads in each; 0 where
	// the log does not tell.
	Channels int `json:"channels,omitempty"`
	Threads  int `json:"threads,omitempty"`
	// Works is the number of calls that the launch joins.
	Works int `json:"works"`
}

// Windowed reports whether the launch went over windows.
func (c *Choice) Windowed() bool { return c.Engine != Plain }

// String says what was chosen, without the call.
func (c *Choice) String() string {
	switch c.Engine {
	case Symmetric:
		return "symmetric kernel " + c.Kernel
	case CopyEngine:
		return "copy engine, " + c.Kernel
	default:
		return "plain " + c.Algorithm + "/" + c.Protocol
	}
}

// ParseChoice reads a message of NCCL's log, without its prefix. It is false for a message about
// something else.
func ParseChoice(message string) (Choice, bool) {
	head, rest, ok := strings.Cut(message, ": ")
	count, chosen, arrow := strings.Cut(rest, " Bytes -> ")
	bytes, err := strconv.ParseInt(count, 10, 64)
	if !ok || !arrow || err != nil || bytes < 0 {
		return Choice{}, false
	}
	name, kind, _ := strings.Cut(head, " ")
	c := Choice{Collective: name, Bytes: bytes, Works: 1}
	if !word(name) {
		return Choice{}, false
	}
	switch kind {
	case "[Symmetric]":
		return c, c.symmetric(chosen)
	case "[Copy Engine]", "[Hierarchical CE]":
		c.Engine, c.Kernel = CopyEngine, chosen
		return c, chosen != ""
	case "":
		return c, c.plain(chosen)
	default:
		return Choice{}, false
	}
}

// symmetric reads "Kernel NAME nchannels 4 nthreads 512 nWorks 1".
func (c *Choice) symmetric(text string) bool {
	c.Engine = Symmetric
	fields := strings.Fields(text)
	if len(fields) < 2 || len(fields)%2 != 0 || fields[0] != "Kernel" || !word(fields[1]) {
		return false
	}
	c.Kernel = fields[1]
	for i := 2; i < len(fields); i += 2 {
		n, err := strconv.Atoi(fields[i+1])
		if err != nil || n < 0 {
			return false
		}
		switch fields[i] {
		case "nchannels":
			c.Channels = n
		case "nthreads":
			c.Threads = n
		case "nWorks":
			c.Works = n
		}
	}
	return true
}

// plain reads "Algo RING proto LL channel{Lo..Hi}={0..1}".
func (c *Choice) plain(text string) bool {
	c.Engine = Plain
	var low, high int
	n, err := fmt.Sscanf(text, "Algo %s proto %s channel{Lo..Hi}={%d..%d}",
		&c.Algorithm, &c.Protocol, &low, &high)
	if err != nil || n != 4 || low < 0 || high < low {
		return false
	}
	c.Channels = high - low + 1
	return true
}

// word reports whether a text is one name, as those of collectives and kernels are.
func word(text string) bool {
	return text != "" && strings.IndexFunc(text, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) < 0
}
