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

// Variable names the variable with NCCL's address for RAS clients; defaultAddress is used without
// it.
const (
	Variable       = "NCCL_RAS_ADDR"
	defaultAddress = "localhost:28028"
)

// largestAnswer bounds the bytes of an answer that are read. An answer has about 400 per rank and
// communicator.
const largestAnswer = 64 << 20

// Address returns the address on which NCCL listens, from NCCL's variable or its default.
func Address(getenv func(string) string) string {
	return cmp.Or(getenv(Variable), defaultAddress)
}

// Ask requests the state of all communicators from the NCCL that listens at an address. ctx bounds
// the request. NCCL waits a second at most for processes that do not respond.
func Ask(ctx context.Context, address string) (*Status, error) {
	status, err := ask(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("asking NCCL's RAS at %s: %w", address, err)
	}
	return status, nil
}

func ask(ctx context.Context, address string) (*Status, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	answer := bufio.NewReader(io.LimitReader(conn, largestAnswer))
	for _, q := range []struct{ line, want string }{
		{"CLIENT PROTOCOL 2", "SERVER PROTOCOL "}, {"TIMEOUT 1", "OK"}, {"SET FORMAT json", "OK"},
	} {
		if _, err := fmt.Fprintf(conn, "%s\n", q.line); err != nil {
			return nil, err
		}
		got, err := answer.ReadString('\n')
		if err != nil {
			return nil, err
		}
		if !strings.HasPrefix(got, q.want) {
			return nil, fmt.Errorf("%s: the answer is %.60q", q.line, got)
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
