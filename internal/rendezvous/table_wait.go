package rendezvous

import "slices"

// wait answers a WAIT immediately if all keys are set. Otherwise the client starts waiting.
func (t *table) wait(from clientID, keys []string) error {
	if t.waiting[from] != nil {
		return errSecondWait
	}
	w := &waiter{client: from, missing: map[string]bool{}}
	for _, key := range keys {
		if t.isMissing(key) && !w.missing[key] {
			w.missing[key] = true
			t.watched[key] = append(t.watched[key], w)
		}
	}
	if len(w.missing) == 0 {
		t.answer(from, []byte{replyStop})
		return nil
	}
	t.waiting[from] = w
	return nil
}

func (t *table) wakeWaiters(key string) {
	waiters := t.watched[key]
	delete(t.watched, key)
	for _, w := range waiters {
		t.removeMissing(w, key)
	}
}

// removeMissing removes key from the missing keys of w, and answers the wait if no key is left.
func (t *table) removeMissing(w *waiter, key string) {
	if delete(w.missing, key); len(w.missing) == 0 {
		delete(t.waiting, w.client)
		t.answer(w.client, []byte{replyStop})
	}
}

func (t *table) unwatch(w *waiter, key string) {
	remaining := slices.DeleteFunc(t.watched[key], func(x *waiter) bool { return x == w })
	if t.watched[key] = remaining; len(remaining) == 0 {
		delete(t.watched, key)
	}
}

// arrive counts an arrival at a barrier for the given number of ranks. The last arrival releases
// all waiting clients.
func (t *table) arrive(from clientID, key string, ranks int64) error {
	if t.waiting[from] != nil {
		return errSecondWait
	}
	b := t.barriers[key]
	if b == nil {
		b = &barrier{}
		t.barriers[key] = b
	}
	b.arrived++
	b.clients = append(b.clients, from)
	t.waiting[from] = &waiter{client: from, barrier: b}
	if b.arrived < ranks {
		return nil
	}
	for _, client := range b.clients {
		delete(t.waiting, client)
		t.answer(client, []byte{replyStop})
	}
	b.clients = nil
	return nil
}

// leave ends the wait of a client that has canceled the wait or disconnected. If the client has
// arrived at a barrier, the arrival still counts.
func (t *table) leave(client clientID) {
	w := t.waiting[client]
	if w == nil {
		return
	}
	delete(t.waiting, client)
	for key := range w.missing {
		t.unwatch(w, key)
	}
	if w.barrier != nil {
		w.barrier.clients = slices.DeleteFunc(w.barrier.clients,
			func(c clientID) bool { return c == client })
	}
}
