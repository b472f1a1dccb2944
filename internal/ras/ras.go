// Package ras queries how many collectives each rank of a communicator has launched. NCCL 2.28.7
// and later answer in JSON through their RAS subsystem, which listens on a TCP port. The answer may
// come from another process, so the package limits its length, and uses only numbers and known
// names.
package ras

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"time"
)

const (
	// AddressVariable is the environment variable for the address of NCCL's RAS (reliability,
	// availability and serviceability) server.
	AddressVariable = "NCCL_RAS_ADDR"
	defaultAddress  = "localhost:28028"
)

// maxResponse allows 400 bytes for each of 160,000 ranks.
const maxResponse = 64 << 20

// Status is NCCL's report on all communicators of a job.
type Status struct {
	Communicators []Communicator `json:"communicators"`
}

// Communicator is a group of ranks that run collectives together.
type Communicator struct {
	ID    string `json:"hash"`  // see the function ID
	Size  int    `json:"size"`  // number of ranks
	Ranks []Rank `json:"ranks"` // without those that did not answer
}

// Rank counts the collectives that a rank has launched.
type Rank struct {
	Rank   int               `json:"rank"`              // number in the communicator
	Counts map[string]uint64 `json:"collective_counts"` // by kind, such as "AllReduce"
}

// Address returns the address on which NCCL listens for RAS clients.
func Address(getenv func(string) string) string {
	return cmp.Or(getenv(AddressVariable), defaultAddress)
}

// QueryStatus asks NCCL for the state of all communicators. NCCL waits up to a second for
// unresponsive processes, whose ranks are then missing from the result.
func QueryStatus(ctx context.Context, address string) (*Status, error) {
	status, err := exchange(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("asking NCCL's RAS at %s: %w", address, err)
	}

	return status, nil
}

// exchange sends the handshake and the query, and decodes the status.
func exchange(ctx context.Context, address string) (*Status, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() {
		pastDeadline := time.Unix(1, 0)
		_ = conn.SetDeadline(pastDeadline) // unblocks reads and writes
	})
	defer stop()
	responses := bufio.NewReader(io.LimitReader(conn, maxResponse))
	if err := shakeHands(conn, responses); err != nil {
		return nil, err
	}

	if _, err := fmt.Fprintln(conn, "VERBOSE STATUS"); err != nil {
		return nil, err
	}

	var status Status
	if err := json.NewDecoder(responses).Decode(&status); err != nil {
		return nil, err
	}

	return &status, nil
}

// handshake lists the commands before the query, and the prefixes of their responses.
var handshake = []struct{ command, response string }{
	{command: "CLIENT PROTOCOL 2", response: "SERVER PROTOCOL "},
	{command: "TIMEOUT 1", response: "OK"}, // in seconds
	{command: "SET FORMAT json", response: "OK"},
}

func shakeHands(conn net.Conn, responses *bufio.Reader) error {
	for _, step := range handshake {
		if _, err := fmt.Fprintf(conn, "%s\n", step.command); err != nil {
			return err
		}

		response, err := responses.ReadString('\n')
		if err != nil {
			return err
		}

		if !strings.HasPrefix(response, step.response) {
			return fmt.Errorf("%s: unexpected response %.60q", step.command, response)
		}
	}

	return nil
}

// ID returns NCCL's hash of a communicator's unique ID, as in eatHash of NCCL's source.
func ID(uniqueID []byte) string {
	const wordBytes = 8
	a := uint64(1) ^ uint64(len(uniqueID))
	b := uint64(1)
	rest := uniqueID
	for len(rest) > 0 {
		a += b
		b ^= a
		a ^= a >> 31
		a *= 0x9de62bbc8cef3ce3
		b ^= b >> 32
		b *= 0x485cd6311b599e79
		var word [wordBytes]byte
		copied := copy(word[:], rest) // The last word may be incomplete.
		a += binary.LittleEndian.Uint64(word[:])
		rest = rest[copied:]
	}

	a ^= a >> 31
	a *= 0xbac3bd562846de6b
	a += b
	a ^= a >> 32
	a *= 0x995a187a14e7b445
	return fmt.Sprintf("%#x", a)
}

// DescribeDifferences lists the counts that differ between a communicator's ranks, for example
// "AllReduce: 3 by rank 1, 4 by ranks 0,2-3". It returns "" if it finds no difference. format
// formats ranks, as in "ranks 0,2-3".
func (s *Status) DescribeDifferences(id string, size int, format func(ranks []int) string) string {
	isWanted := func(c Communicator) bool { return c.ID == id && c.Size == size }
	index := slices.IndexFunc(s.Communicators, isWanted)
	if index < 0 {
		return ""
	}

	communicator := &s.Communicators[index]
	var differences []string
	for _, collective := range countedCollectives {
		difference := communicator.describeCounts(collective, format)
		if difference != "" {
			differences = append(differences, collective+": "+difference)
		}
	}

	return strings.Join(differences, "; ")
}

// countedCollectives lists the keys of Rank.Counts.
var countedCollectives = []string{
	"Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce",
}

// describeCounts lists the counts of one collective if they differ, as in "3 by rank 1, 4 by ranks
// 0,2-3". It ignores ranks out of range.
func (c *Communicator) describeCounts(
	collective string, format func(ranks []int) string,
) string {
	ranksByCount := map[uint64][]int{}
	for _, r := range c.Ranks {
		isInRange := r.Rank >= 0 && r.Rank < c.Size
		if isInRange {
			count := r.Counts[collective] // 0 if none was launched
			ranksByCount[count] = append(ranksByCount[count], r.Rank)
		}
	}

	if len(ranksByCount) < 2 {
		return ""
	}

	var parts []string
	for _, count := range slices.Sorted(maps.Keys(ranksByCount)) {
		ranks := ranksByCount[count]
		slices.Sort(ranks)
		parts = append(parts, fmt.Sprintf("%d by %s", count, format(ranks)))
	}

	return strings.Join(parts, ", ")
}
