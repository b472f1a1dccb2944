package proof

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Log lists NCCL's choices of kernels, in the order of the launches.
type Log []Choice

// Choice describes the kernel that NCCL chose for a launch of one or more calls.
type Choice struct {
	Collective         // with the total size of the calls
	Calls       int    // number of calls
	Description string // begins with "plain ", "symmetric kernel " or "copy engine, "
	Windowed    bool   // whether the kernel uses windows; false for plain kernels
}

// Collective is a collective call, as NCCL logs it.
type Collective struct {
	Operation string // such as "AllReduce"
	Bytes     int64  // the count argument times the size of an element
}

// operations lists NCCL's names.
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
func Parse(r io.Reader) (Log, error) {
	var log Log
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			return log, nil
		}

		if err != nil {
			return nil, fmt.Errorf("reading NCCL's log: %w", err)
		}

		_, message, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " NCCL INFO ")
		if choice, ok := ParseChoice(message); ok {
			log = append(log, choice)
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

	operation, kind, sizeText, chosen := launch[1], launch[2], launch[3], launch[4]
	callsText := "1"
	switch kind {
	case "":
		kernel := plainKernel.FindStringSubmatch(chosen)
		if kernel == nil {
			return c, false
		}

		algorithm, protocol := kernel[1], kernel[2]
		c.Description = "plain " + algorithm + "/" + protocol
	case "Symmetric":
		kernel := symmetricKernel.FindStringSubmatch(chosen)
		if kernel == nil {
			return c, false
		}

		name, works := kernel[1], kernel[2]
		c.Description = "symmetric kernel " + name
		c.Windowed = true
		callsText = cmp.Or(works, "1") // NCCL 2.27 omits nWorks
	default: // copies between windows
		c.Description = "copy engine, " + chosen
		c.Windowed = true
	}

	size, sizeErr := strconv.ParseInt(sizeText, 10, 64)
	calls, callsErr := strconv.Atoi(callsText)
	c.Collective = Collective{Operation: operation, Bytes: size}
	c.Calls = calls
	fitIntoInts := sizeErr == nil && callsErr == nil
	return c, fitIntoInts
}

// Kernels describes the kernels that NCCL chose for all launches of a call.
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
	launches := map[string]int{}
	areWindowed := true
	for _, choice := range l {
		hasOneCall := choice.Calls == 1 // otherwise, the size of a call is unknown
		if !hasOneCall || choice.Collective != c {
			continue
		}

		if launches[choice.Description] == 0 {
			distinct = append(distinct, choice.Description)
		}

		launches[choice.Description]++
		areWindowed = areWindowed && choice.Windowed
	}

	if len(distinct) == 0 {
		return Kernels{Collective: c, Description: "not in NCCL's log"}
	}

	if len(distinct) > 1 {
		for i, description := range distinct {
			distinct[i] = fmt.Sprintf("%s (%d times)", description, launches[description])
		}
	}

	return Kernels{
		Collective: c, Logged: true, Windowed: areWindowed,
		Description: strings.Join(distinct, "; "),
	}
}
