// Asks for what the page of slides needs first, while the scripts that draw it are still on their way.

window.early = { session: fetch("api/session", { cache: "no-store" }) };
// Another slide is asked for once it is known that there is one of that number.
if (!/[#&]slide=[^0&]/.test(location.hash)) window.early.layout = fetch("api/slides/0", { cache: "no-store" });
