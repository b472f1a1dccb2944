package rendezvous

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTimeout bounds every wait in these tests. It expires only if a test hangs.
const testTimeout = 30 * time.Second

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// closeLater closes c at the end of the test. If Close returns an error, the test fails.
func closeLater(t testing.TB, c interface{ Close() error }) {
	t.Helper()
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
}

func serveOn(t testing.TB, address string, token Token) (*Server, *Client) {
	t.Helper()
	s, err := Listen(address, token)
	if err != nil {
		t.Fatal(err)
	}

	closeLater(t, s)
	c, err := Dial(testContext(t), Endpoint{Address: s.Address(), Token: token})
	if err != nil {
		t.Fatal(err)
	}

	closeLater(t, c)
	return s, c
}

func privateAddress() string { return "unix:@symmem-test-" + string(NewToken()) }
