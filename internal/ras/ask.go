package ras

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

const (
	// Variable is the environment variable for the address of NCCL's RAS (reliability, availability
	// and serviceability) server, which reports the state of a job.
	Variable       = "NCCL_RAS_ADDR"
	defaultAddress = "localhost:28028" // NCCL's default
)

// maxResponse limits a response in bytes. A rank takes about 400 bytes per communicator.
const maxResponse = 64 << 20

// Address returns the address on which NCCL listens for RAS clients.
func Address(getenv func(string) string) string {
	return cmp.Or(getenv(Variable), defaultAddress)
}

// QueryStatus asks NCCL for the state of all communicators. NCCL waits up to a second for
// unresponsive processes.
func QueryStatus(ctx context.Context, address string) (*Status, error) {
	status, err := exchange(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("asking NCCL's RAS at %s: %w", address, err)
	}

	return status, nil
}

// handshake lists the commands before the query, with prefixes of the expected responses.
var handshake = []struct{ command, response string }{
	{command: "CLIENT PROTOCOL 2", response: "SERVER PROTOCOL "},
	{command: "TIMEOUT 1", response: "OK"}, // in seconds
	{command: "SET FORMAT json", response: "OK"},
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
	for _, step := range handshake {
		if _, err := fmt.Fprintf(conn, "%s\n", step.command); err != nil {
			return nil, err
		}

		response, err := responses.ReadString('\n')
		if err != nil {
			return nil, err
		}

		if !strings.HasPrefix(response, step.response) {
			return nil, fmt.Errorf("%s: unexpected response %.60q", step.command, response)
		}
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
