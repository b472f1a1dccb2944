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

// Variable names NCCL's address for such questions, and defaultAddress is what it is without.
const (
	Variable       = "NCCL_RAS_ADDR"
	defaultAddress = "localhost:28028"
)

// largestAnswer is how many bytes of an answer are read: about 400 for each rank of each
// communicator.
const largestAnswer = 64 << 20

// Address is where NCCL listens, as its own variable says.
func Address(getenv func(string) string) string {
	return cmp.Or(getenv(Variable), defaultAddress)
}

// Ask asks the NCCL that listens at an address about all communicators. The context bounds it. NCCL
// waits a second at most for processes that do not answer it.
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
