'use strict';
// Renders nothing: the server sends elements, which replace what changed in those that are there, so
// that focus, selection and scroll position stay.
(() => {
  const byId = id => document.getElementById(id);
  const link = byId('link');
  const filter = byId('filter');
  const table = byId('connections');
  let last = Date.now();
  let source = null;

  const part = html => {
    const template = document.createElement('template');
    template.innerHTML = html;
    return template.content.firstElementChild;
  };

  const morph = (old, now) => {
    if (old.nodeName !== now.nodeName) return old.replaceWith(now);
    if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== now.data) old.data = now.data;
      return;
    }
    for (const { name } of [...old.attributes]) {
      if (name !== 'hidden' && !now.hasAttribute(name)) old.removeAttribute(name);
    }
    for (const { name, value } of now.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    const [olds, news] = [[...old.childNodes], [...now.childNodes]];
    news.forEach((node, at) => (at < olds.length ? morph(olds[at], node) : old.append(node)));
    olds.slice(news.length).forEach(node => node.remove());
  };

  const show = (state, text) => {
    link.dataset.state = state;
    if (link.textContent !== text) link.textContent = text;
    document.body.classList.toggle('stale', state === 'lost');
  };

  const select = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(word => word);
    let shown = 0;
    for (const row of table.tBodies) {
      const text = words.length ? row.textContent.toLowerCase() : '';
      row.hidden = !words.every(word => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    byId('matches').textContent = words.length ? `${shown} of ${table.tBodies.length}` : '';
  };

  const update = data => {
    const focused = document.activeElement;
    for (const [id, html] of Object.entries(data.parts)) morph(byId(id), part(html));
    for (const [id, html] of Object.entries(data.rows)) {
      const [old, now] = [byId(id), part(html)];
      if (old) morph(old, now);
      else table.append(now);
    }
    if (data.order) {
      const wanted = new Set(data.order);
      for (const row of [...table.tBodies]) if (!wanted.has(row.id)) row.remove();
      data.order.forEach((id, at) => {
        const row = byId(id);
        if (row && table.tBodies[at] !== row) table.insertBefore(row, table.tBodies[at] || null);
      });
      // A row that is moved loses the focus.
      if (focused !== document.activeElement && focused.isConnected) focused.focus();
    }
    if (filter.value) select();
  };

  // A browser connects again by itself after a lost connection, and not after a refusal.
  const refused = async () => {
    try {
      const answer = await fetch('/events', { method: 'HEAD' });
      if (answer.status === 401) show('lost', 'token refused: open the address that weir web prints');
      // Another token may have come by another tab.
      setTimeout(open, answer.ok ? 0 : 5000);
    } catch {
      setTimeout(refused, 1000);
    }
  };

  const open = () => {
    source = new EventSource('/events');
    source.addEventListener('page', event => {
      last = Date.now();
      update(JSON.parse(event.data));
      show('live', 'live');
    });
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) {
        source = null;
        refused();
      }
    };
  };

  // The page of one connection is small: it is loaded again.
  const reload = async () => {
    try {
      const answer = await fetch(location.href);
      const now = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('#sas');
      if (now) morph(byId('sas'), now);
      last = Date.now();
      show('live', now ? 'live' : 'this connection is gone');
    } catch {
      // The age of the data is shown below.
    }
  };

  setInterval(() => {
    const age = Math.round((Date.now() - last) / 1000);
    if (!document.hidden && age > 3 && !link.textContent.startsWith('token')) {
      show('lost', `no data for ${age} s, trying again`);
    }
    if (!table && !document.hidden) reload();
  }, 1000);

  if (table) {
    document.querySelector('.tools').hidden = false;
    filter.addEventListener('input', select);
    open();
    document.addEventListener('visibilitychange', () => {
      if (document.hidden) {
        if (source) source.close();
        source = null;
      } else if (!source) {
        last = Date.now();
        open();
      }
    });
  }
})();
