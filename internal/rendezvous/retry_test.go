package rendezvous

import "testing"

func TestServedByIsSameForPrefixedClient(t *testing.T) {
	c := NewLocal()
	defer c.Close()
	for _, rank := range []int{-1, 0, 3} {
		c.serverRank = rank
		prefixed := WithPrefix(WithPrefix(c, "a"), "b")
		if got := prefixed.ServedBy(); got != rank {
			t.Errorf("ServedBy() = %d, want %d", got, rank)
		}
	}
}
