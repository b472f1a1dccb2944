package proof

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Log lists the kernels that NCCL chose, in order.
type Log []Choice

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
