// A double of the dcbnl side of mlx5 (drivers/net/ethernet/mellanox/mlx5/core/en_dcbnl.c) on any network device of a lab
// node. It keeps the settings, drops the entry of a DSCP that another one replaces, leaves DCBX to the firmware until the
// host takes it, and takes the carrier away for two seconds when the PFC mask changes.
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <net/dcbnl.h>

static char *nic = "eth2";
module_param(nic, charp, 0444);

static struct net_device *held;
static struct ieee_pfc pfc;
static u8 dcbx, priority_of[64];
static bool mapped[64];

static void carrier_back(struct work_struct *work)
{
	rtnl_lock();
	if (held)
		netif_carrier_on(held);
	rtnl_unlock();
}
static DECLARE_DELAYED_WORK(flap, carrier_back);

static int get_ets(struct net_device *dev, struct ieee_ets *ets)
{
	int priority;

	ets->ets_cap = IEEE_8021QAZ_MAX_TCS;
	for (priority = 0; priority < IEEE_8021QAZ_MAX_TCS; priority++)
		ets->prio_tc[priority] = priority;
	return 0;
}

static int get_pfc(struct net_device *dev, struct ieee_pfc *answer)
{
	*answer = pfc;
	return 0;
}

static int set_pfc(struct net_device *dev, struct ieee_pfc *wanted)
{
	if (wanted->pfc_en != pfc.pfc_en) {
		netif_carrier_off(dev);
		schedule_delayed_work(&flap, 2 * HZ);
	}
	pfc.pfc_en = wanted->pfc_en;
	return 0;
}

static int del_app(struct net_device *dev, struct dcb_app *app)
{
	if (app->selector == IEEE_8021QAZ_APP_SEL_DSCP && app->protocol < 64)
		mapped[app->protocol] = false;
	return dcb_ieee_delapp(dev, app);
}

static int set_app(struct net_device *dev, struct dcb_app *app)
{
	struct dcb_app old = *app;

	if (app->selector != IEEE_8021QAZ_APP_SEL_DSCP || app->protocol >= 64)
		return -EINVAL;
	old.priority = priority_of[app->protocol];
	if (mapped[app->protocol] && old.priority != app->priority)
		dcb_ieee_delapp(dev, &old);
	mapped[app->protocol] = true;
	priority_of[app->protocol] = app->priority;
	return dcb_ieee_setapp(dev, app);
}

static u8 get_dcbx(struct net_device *dev)
{
	return dcbx;
}

static u8 set_dcbx(struct net_device *dev, u8 mode)
{
	if (!(mode & DCB_CAP_DCBX_HOST) || mode & DCB_CAP_DCBX_LLD_MANAGED)
		return 1;
	dcbx = mode;
	return 0;
}

static const struct dcbnl_rtnl_ops ops = {
	.ieee_getets = get_ets, .ieee_getpfc = get_pfc, .ieee_setpfc = set_pfc,
	.ieee_setapp = set_app, .ieee_delapp = del_app, .getdcbx = get_dcbx, .setdcbx = set_dcbx,
};

// As after a reload of the driver: nothing is mapped, no PFC, DCBX of the firmware.
static void take(struct net_device *dev)
{
	held = dev;
	pfc = (struct ieee_pfc){ .pfc_cap = IEEE_8021QAZ_MAX_TCS };
	dcbx = DCB_CAP_DCBX_LLD_MANAGED | DCB_CAP_DCBX_VER_IEEE;
	memset(mapped, 0, sizeof(mapped));
	dev->dcbnl_ops = &ops;
}

static void leave(struct net_device *dev)
{
	struct dcb_app app = { .selector = IEEE_8021QAZ_APP_SEL_DSCP };

	for (app.protocol = 0; app.protocol < 64; app.protocol++) {
		app.priority = priority_of[app.protocol];
		if (mapped[app.protocol])
			dcb_ieee_delapp(dev, &app);
	}
	dev->dcbnl_ops = NULL;
	held = NULL;
}

static int event(struct notifier_block *block, unsigned long what, void *info)
{
	struct net_device *dev = netdev_notifier_info_to_dev(info);

	if (what == NETDEV_REGISTER && !held && !strcmp(dev->name, nic))
		take(dev);
	else if (what == NETDEV_UNREGISTER && dev == held)
		leave(dev);
	return NOTIFY_DONE;
}
static struct notifier_block block = { .notifier_call = event };

static int __init start(void)
{
	return register_netdevice_notifier(&block);
}

static void __exit stop(void)
{
	unregister_netdevice_notifier(&block);
	cancel_delayed_work_sync(&flap);
}
module_init(start);
module_exit(stop);
MODULE_LICENSE("GPL");
