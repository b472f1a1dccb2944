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

// Variable is the environment variable for the address of NCCL's RAS subsystem.
const (
	Variable       = "NCCL_RAS_ADDR"
	defaultAddress = "localhost:28028"
)

// A response takes about 400 bytes for each rank of each communicator.
const maxResponse = 64 << 20

// Address returns the address on which NCCL listens for RAS clients.
func Address(getenv func(string) string) string {
	return cmp.Or(getenv(Variable), defaultAddress)
}

// QueryStatus asks NCCL for the state of all communicators. NCCL waits for at most one second for
// processes that do not respond.
func QueryStatus(ctx context.Context, address string) (*Status, error) {
	status, err := exchange(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("asking NCCL's RAS at %s: %w", address, err)
	}
	return status, nil
}

func exchange(ctx context.Context, address string) (*Status, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	answer := bufio.NewReader(io.LimitReader(conn, maxResponse))
	for _, q := range []struct{ line, prefix string }{
		{"CLIENT PROTOCOL 2", "SERVER PROTOCOL "}, {"TIMEOUT 1", "OK"}, {"SET FORMAT json", "OK"},
	} {
		if _, err := fmt.Fprintf(conn, "%s\n", q.line); err != nil {
			return nil, err
		}
		got, err := answer.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(got, q.prefix) {
			return nil, fmt.Errorf("%s: unexpected response %.60q", q.line, got)
		}
	}
	if _, err := fmt.Fprintln(conn, "VERBOSE STATUS"); err != nil {
		return nil, err
	}
	var status Status
	if err := json.NewDecoder(answer).Decode(&status); err != nil {
		return nil, err
	}
	return &status, nil
}
