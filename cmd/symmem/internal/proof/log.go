package proof

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Log lists the kernels that NCCL chose, in order.
type Log []Choice

// Choice describes the kernel that NCCL chose for a launch.
type Choice struct {
	Collective     // Bytes is the sum over all calls
	Calls      int // number of calls in the launch
	// Description begins with "symmetric kernel " if the kernel uses windows, "copy engine, " for
	// copies between windows, and otherwise "plain ".
	Description string
	Windowed    bool
}

// Collective identifies calls in NCCL's log by operation and size.
type Collective struct {
	Operation string
	Bytes     int64 // the count argument times the size of an element
}

var operations = []string{
	"AllGather", "AllReduce", "AlltoAll", "Broadcast", "Reduce", "ReduceScatter",
}

// CollectiveOf returns the Collective for a call. operation is a name in symmem ("AllReduce") or
// nccl-tests ("all_reduce").
func CollectiveOf(operation string, count int64, elementBytes int) Collective {
	name := strings.ReplaceAll(operation, "_", "")
	i := slices.IndexFunc(operations, func(candidate string) bool {
		return strings.EqualFold(candidate, name)
	})
	if i >= 0 {
		operation = operations[i]
	}

	return Collective{Operation: operation, Bytes: count * int64(elementBytes)}
}

// String returns the operation and the size, such as "AllReduce 262144 B".
func (c Collective) String() string { return fmt.Sprintf("%s %d B", c.Operation, c.Bytes) }

// Parse parses a log. It ignores an unterminated last line, because NCCL is still writing it.
func Parse(r io.Reader) (l Log, err error) {
	for lines := bufio.NewReader(r); ; {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return l, nil
		}

		if err != nil {
			return nil, fmt.Errorf("reading NCCL's log: %w", err)
		}

		_, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " NCCL INFO ")
		if choice, ok := ParseChoice(message); ok {
			l = append(l, choice)
		}
	}
}

var (
	launchLine = regexp.MustCompile(
		`^(\w+)(?: \[(Symmetric|Copy Engine|Hierarchical CE)\])?: (\d+) Bytes -> (.+)$`)
	symmetricKernel = regexp.MustCompile(`^Kernel (\w+)(?: \w+ \d+)*?(?: nWorks (\d+))?$`)
	plainKernel     = regexp.MustCompile(`^Algo (\S+) proto (\S+) channel{Lo\.\.Hi}={\d+\.\.\d+}`)
)

// ParseChoice parses a message of NCCL's log, without its prefix. ok is false for messages that are
// not about a launch.
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

// Kernels describes the kernels that NCCL chose for the launches of a call.
type Kernels struct {
	Collective
	Logged      bool   // the log contains the call
	Windowed    bool   // all kernels use windows
	Description string // such as "symmetric kernel AllReduce_RSxLD_AGxST"
}

// String returns the call and its kernels as one line.
func (k Kernels) String() string { return k.Collective.String() + ": " + k.Description }

// KernelsOf returns the kernels that NCCL chose for a call, according to the log.
func (l Log) KernelsOf(c Collective) Kernels {
	var distinct []string // in the order of their first launches
	launches, useWindows := map[string]int{}, true
	for _, choice := range l {
		if choice.Calls != 1 || choice.Collective != c {
			continue
		}

		if launches[choice.Description] == 0 {
			distinct = append(distinct, choice.Description)
		}

		launches[choice.Description]++
		useWindows = useWindows && choice.Windowed
	}

	switch len(distinct) {
	case 0:
		return Kernels{Collective: c, Description: "not in NCCL's log"}
	case 1:
		return Kernels{c, true, useWindows, distinct[0]}
	}

	for i, description := range distinct {
		distinct[i] = fmt.Sprintf("%s (%d times)", description, launches[description])
	}

	return Kernels{c, true, useWindows, strings.Join(distinct, "; ")}
}
